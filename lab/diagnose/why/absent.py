"""The verdict on what is not there: processes that are paused or gone, nodes that do not answer."""

from collections.abc import Mapping

from lab.diagnose.finding import Finding, WhyKind
from lab.diagnose.why.evidence import REACHED, Evidence, Node
from lab.diagnose.why.telling import at
from lab.diagnose.why.waits import Wait, innocents
from lab.diagnose.why.wording import who
from lab.diagnose.words import ranks_in_words
from lab.node.peers import UNSURE

PARTITION_CURE = "look at the route and the firewall between these nodes (lab doctor)"


def judge_absent(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Name the processes and nodes without which nothing can go on; None where all are there."""
    return _paused(evidence, waits) or _silent(evidence, waits) or _cut_off(evidence, waits)


def _paused(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    stopped = tuple(sorted(n for n, rank in evidence.ranks.items() if rank.is_stopped))
    timed_out = "imed out" in ((evidence.failure or {}).get("message") or "")
    if not stopped or (evidence.failure is not None and not timed_out):
        return None  # what fails at once has another reason
    rank = evidence.ranks[stopped[0]]
    site = next((frame for frame in rank.frames if frame.user), None)
    finding = Finding(
        "paused",
        "error",
        f"{who(stopped, evidence)} {_is(stopped)} paused: a signal (SIGSTOP, or Ctrl-Z) has "
        "stopped the process",
        ranks=stopped,
        nodes=evidence.nodes_of(stopped),
        innocent=innocents(waits, stopped),
        evidence=tuple(
            f"the process of rank {number} is in state {evidence.ranks[number].process_state}"
            for number in stopped
        ),
        cure="let it go on (kill -CONT), or end the run",
    )
    return at(finding, site)


def _silent(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Processes that are gone without a word, and nodes that do not answer."""
    gone = tuple(sorted(n for n, rank in evidence.ranks.items() if rank.is_gone))
    silent = {node.name: node for node in evidence.nodes.values() if not node.answered}
    # Where all ranks have ended there is nothing left to answer.
    there = tuple(
        sorted(n for n, one in evidence.ranks.items() if one.node in silent and one.ended is None)
    )
    if there and evidence.because != "failure":  # then nobody has waited for slow answers
        living = {one.node for one in evidence.ranks.values() if one.ended is None}
        if len(living) > 1 and living <= silent.keys():
            return _all_silent(evidence, waits, evidence.nodes_of(there))
        return _silent_nodes(evidence, waits, there)
    if gone:
        return Finding(
            "dead",
            "error",
            f"{who(gone, evidence)} {_is(gone)} dead: the process is gone without a word",
            ranks=gone,
            nodes=evidence.nodes_of(gone),
            innocent=innocents(waits, gone),
            evidence=tuple(f"there is no process of rank {number} any more" for number in gone),
        )
    return None


def _all_silent(evidence: Evidence, waits: Mapping[int, Wait], names: tuple[str, ...]) -> Finding:
    """What all nodes have in common is this machine: nothing tells of them."""
    return Finding(
        "unknown",
        "warning",
        f"none of the nodes has answered in time ({', '.join(names[:4])}"
        f"{', ...' * (len(names) > 4)}): the machine that asks may be too busy, or cut off",
        innocent=innocents(waits, ()),
        evidence=tuple(_of_node(evidence, evidence.nodes[name]) for name in names),
    )


def _silent_nodes(
    evidence: Evidence, waits: Mapping[int, Wait], there: tuple[int, ...]
) -> Finding | None:
    """Frozen, cut off or dead: by what the other nodes and the engine see of it."""
    names = evidence.nodes_of(there)
    nodes = [evidence.nodes[name] for name in names]
    several = len(names) > 1
    found = [how for node in nodes for how in _seen_by_others(evidence, node).values()]
    seen = [how for how in found if not how.startswith(UNSURE)]
    kind: WhyKind = "dead"
    cure = "look whether the node runs, and can be reached"
    if seen and all(how in REACHED for how in seen):
        kind, cure = "paused", "look whether the node is paused or overloaded"
        what = f"{'do' if several else 'does'} not answer, but the network there does: "
        what += "processes are frozen"
    elif seen and all(node.alive for node in nodes):
        kind, cure = "partitioned", PARTITION_CURE
        what = f"{'are' if several else 'is'} alive, and the other nodes cannot reach it"
    elif found and not seen and all(node.alive for node in nodes):
        kind = "unknown"
        what = f"{'do' if several else 'does'} not answer in time, and nobody could look up where "
        what += f"{'they are' if several else 'it is'}: perhaps the machines are too busy"
    else:
        what = f"{'do' if several else 'does'} not answer"
        if not any(node.alive for node in nodes):
            what = f"{'are' if several else 'is'} gone"
    return Finding(
        kind,
        "error",
        f"{', '.join(names)} {what}; {ranks_in_words(there)} {_is(there)} there",
        ranks=there,
        nodes=names,
        innocent=innocents(waits, there),
        evidence=tuple(_of_node(evidence, node) for node in nodes),
        cure=cure,
    )


def _seen_by_others(evidence: Evidence, node: Node) -> dict[str, str]:
    """What every other node found when it tried to reach this one."""
    return {
        other.name: other.peers[node.name]
        for other in evidence.nodes.values()
        if node.name in other.peers
    }


def _of_node(evidence: Evidence, node: Node) -> str:
    state = "is alive and does not answer" if node.alive else "is not alive"
    seen = ", ".join(f"{name}: {how}" for name, how in _seen_by_others(evidence, node).items())
    return f"{node.name} {state}" + (f"; as seen from other nodes, {seen}" if seen else "")


def _cut_off(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Nodes that cannot reach each other: the one that no other can reach is the guilty one."""
    pairs = {
        (min(node.name, other), max(node.name, other)): node.peers[other]
        for node in evidence.nodes.values()
        for other in node.cut_off_from
        if _is_cut(evidence, node, other)
    }
    if not pairs or not waits:
        return None
    alone = [
        name
        for name in evidence.nodes
        if len(evidence.nodes) > 2
        and all(_pair(name, other) in pairs for other in evidence.nodes if other != name)
    ]
    names = sorted(alone) or sorted({name for pair in pairs for name in pair})
    there = tuple(sorted(n for n, rank in evidence.ranks.items() if rank.node in names))
    words = [f"{a} and {b}" for a, b in sorted(pairs)]
    return Finding(
        "partitioned",
        "error",
        f"the network is cut: {', '.join(words[:4])} cannot reach each other"
        + (f" ({len(words)} pairs of nodes in all)" if len(words) > 4 else ""),
        ranks=there,
        nodes=tuple(names),
        innocent=innocents(waits, there),
        evidence=tuple(f"between {a} and {b}: {how}" for (a, b), how in sorted(pairs.items())),
        cure=PARTITION_CURE,
    )


def _is_cut(evidence: Evidence, node: Node, name: str) -> bool:
    """Whether neither end reaches the other, as far as both have tried.

    Where one does, the network is there: an answer has only come too late, as on a busy machine, or
    a firewall lets nobody begin from the other side.
    """
    other = evidence.nodes.get(name)
    if other is None or node.name not in other.peers:
        return not node.peers[name].startswith(UNSURE)
    return node.name in other.cut_off_from


def _pair(one: str, other: str) -> tuple[str, str]:
    return min(one, other), max(one, other)


def _is(ranks: tuple[int, ...]) -> str:
    return "is" if len(ranks) == 1 else "are"
