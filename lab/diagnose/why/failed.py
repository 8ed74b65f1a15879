"""The verdict on a rank that has failed by itself; what follows from it are others' failures."""

from collections.abc import Mapping
from dataclasses import replace

from lab.diagnose.finding import Finding
from lab.diagnose.why.activity import activity_of
from lab.diagnose.why.evidence import Evidence, Json
from lab.diagnose.why.unused import UNUSED_CURE
from lab.diagnose.why.waits import Wait, innocents
from lab.diagnose.why.wording import raised_in_words, who
from lab.diagnose.words import (
    origin_in_words,
    place_in_words,
    ranks_in_words,
    signal_in_words,
)
from lab.node.victims import ABORTED, consequence

UNFINISHED = "Expected to have finished reduction in the prior iteration"
"""What torch's DDP says in the forward after a backward that left parameters out."""
VICTIM_MEANS = "this is what a rank says whose peer has gone, and none has said why it went"
NO_MESH = "connectFullMesh failed"
NO_MESH_MEANS = (
    "the ranks have met at the master, and could not connect to each other at the addresses that "
    "each of them gave there"
)
NO_MESH_CURE = (
    "look at GLOO_SOCKET_IFNAME, which says whose address a rank gives (never lo), at the names of "
    "the nodes, and at firewalls between them (lab doctor)"
)


def judge_failed(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Name the rank that failed first; None where that was the consequence of something else."""
    failure = evidence.failure
    if failure is None or consequence(failure.get("chain") or ()):
        return None
    if failure.get("kind") == "node-lost":
        return _lost(evidence, failure, waits)
    if UNFINISHED in (failure.get("message") or ""):
        return _unused(evidence, failure, waits)
    if failure.get("exit_code") == ABORTED:
        return None
    return _failed(evidence, failure, waits, ())


def judge_rest(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """What is left to say where a rank has failed, and nothing tells why."""
    failure = evidence.failure
    if failure is None:
        return None
    message = failure.get("message") or ""
    if NO_MESH in message:
        finding = _failed(evidence, failure, waits, (NO_MESH_MEANS,))
        return replace(finding, cure=NO_MESH_CURE)
    if not consequence(failure.get("chain") or ()):
        return _failed(evidence, failure, waits, ())
    return _failed(evidence, failure, waits, (VICTIM_MEANS,))


def _failed(
    evidence: Evidence, failure: Json, waits: Mapping[int, Wait], seen: tuple[str, ...]
) -> Finding:
    ranks = _alike(evidence, failure)
    file, line, function = failure.get("file"), failure.get("line"), None
    site = activity_of(evidence.ranks[failure["rank"]]).site
    if file is None and site is not None:  # its last breath, before a fatal signal ended it
        file, line, function = site.file, site.line, site.function
    place = place_in_words(file, line)
    caught = (evidence.ranks[failure["rank"]].exception or {}).get("caught")
    if caught:
        seen = (*seen, f"it was raised in {caught} of rank {failure['rank']}")
    return Finding(
        "failed",
        "error",
        f"{who(ranks, evidence)} {_what(failure)}{f' ({place})' if place else ''}"
        f"{origin_in_words(failure.get('chain') or ())}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        file=file,
        line=line,
        function=function,
        innocent=innocents(waits, ranks),
        evidence=seen,
    )


def _alike(evidence: Evidence, failure: Json) -> tuple[int, ...]:
    """The rank that failed first, and those that raised the same from the same line."""
    raised = {
        n: rank.exception
        for n, rank in evidence.ranks.items()
        if rank.exception and not consequence(rank.exception.get("chain") or ())
    }
    first = (failure.get("exception"), failure.get("file"), failure.get("line"))
    same = [n for n, one in raised.items() if (one["kind"], one["file"], one["line"]) == first]
    return tuple(sorted({int(failure["rank"]), *same}))


def _lost(evidence: Evidence, failure: Json, waits: Mapping[int, Wait]) -> Finding:
    node = failure["node"]
    ranks = tuple(sorted(n for n, rank in evidence.ranks.items() if rank.node == node))
    return Finding(
        "dead",
        "error",
        f"{node} is lost, with {ranks_in_words(ranks)}: {failure.get('message') or 'no answer'}",
        ranks=ranks,
        nodes=(node,),
        innocent=innocents(waits, ranks),
        cure="look whether the node runs, and can be reached",
    )


def _what(failure: Json) -> str:
    if failure.get("exception"):
        return raised_in_words(failure["exception"], failure.get("message"))
    if failure.get("kind") == "signal":
        return f"was ended by {signal_in_words(failure['exit_code'] - 128)}"
    if failure.get("kind") != "exit" and failure.get("message"):
        return f"failed: {failure['message']}"
    return f"ended with exit code {failure['exit_code']}"


def _unused(evidence: Evidence, failure: Json, waits: Mapping[int, Wait]) -> Finding:
    ranks = tuple(sorted(n for n, rank in evidence.ranks.items() if rank.unused))
    ranks = ranks or _alike(evidence, failure)
    names = list(dict.fromkeys(name for n in ranks for name in evidence.ranks[n].unused))
    named = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    told = f": {named}" if names else "; DDP's message has their numbers"
    return Finding(
        "unused-parameter",
        "error",
        f"{who(ranks, evidence)} left parameters out of the forward pass, so that DDP waits for "
        f"gradients that never come{told}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        file=failure.get("file"),
        line=failure.get("line"),
        innocent=innocents(waits, ranks),
        evidence=(f"rank {failure['rank']} {_what(failure)}",),
        cure=UNUSED_CURE,
    )
