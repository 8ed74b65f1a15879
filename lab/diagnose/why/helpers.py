"""What is added to a verdict: threads and processes of a rank's own that have failed.

A main thread that waits for what such a one was to bring waits for ever. It is the reason where
nothing else of the rank may bring it; else it is only told.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from lab.diagnose.finding import Finding
from lab.diagnose.why.activity import activity_of
from lab.diagnose.why.evidence import Evidence, Helper, Rank
from lab.diagnose.why.handling import reason_of
from lab.diagnose.why.sequences import place_of
from lab.diagnose.why.waits import Wait, innocents
from lab.diagnose.why.wording import exception_in_words, who
from lab.diagnose.words import ranks_in_words, signal_in_words
from lab.node.victims import consequence

KINDS = ("busy-alone", "data-loader", "rendezvous", "unknown")
"""Those of ranks that do, or wait for, something of their own."""
WAITING = (
    *("/threading.py", "/queue.py", "/selectors.py", "/concurrent/futures/_base.py"),
    *("/multiprocessing/connection.py", "/multiprocessing/queues.py"),
    *("/multiprocessing/popen_fork.py", "/multiprocessing/synchronize.py"),
)
"""Where Python waits for what another thread or process does."""
WAITING_IN_C = re.compile(r"\.(get|put|join|wait|acquire|recv|recv_bytes|result)\(")
"""The same in a line that calls what has no frame of its own (SimpleQueue, a lock)."""
AHEAD = 16
"""Rounds for which a rank goes on with what a thread had brought before its end, in a queue."""
MOST = 4
"""To tell of."""
CURE = (
    "mend what ended it; and let it tell who waits: catch what it raises, put that where the "
    "result was to come (a queue, a future), and raise it again there; or wait with a timeout"
)
Reason = tuple[object, ...]


def with_helpers(finding: Finding, evidence: Evidence, waits: Mapping[int, Wait]) -> Finding:
    """The finding with those of the guilty ranks, or of all where nobody is named."""
    if finding.kind == "slow":
        return finding
    ranks = [evidence.ranks[n] for n in finding.ranks or evidence.ranks if n in evidence.ranks]
    lost = {rank.number: failed for rank in ranks if (failed := _failed(rank))}
    if not lost:
        return finding
    guilty: dict[int, Helper] = {}
    if finding.kind in KINDS:
        reasons = {n: _reason(evidence.ranks[n], evidence) for n in lost}
        guilty = {n: last for n, last in reasons.items() if last is not None}
    if not guilty or (not finding.ranks and guilty.keys() != evidence.ranks.keys()):
        told = [_told(evidence.ranks[n], one) for n, failed in lost.items() for one in failed]
        return replace(finding, evidence=(*finding.evidence, *told[:MOST]))
    return _of_them(finding, evidence, waits, guilty)


def _of_them(
    finding: Finding, evidence: Evidence, waits: Mapping[int, Wait], guilty: Mapping[int, Helper]
) -> Finding:
    ranks = tuple(sorted(guilty))
    first = guilty[ranks[0]]
    raised = first.exception or {"file": None, "line": None}
    named = who(finding.ranks, evidence) if finding.ranks else ""
    then = finding.summary
    if named and then.startswith(named):
        then = ranks_in_words(finding.ranks) + then.removeprefix(named)
    told = [_told(evidence.ranks[n], guilty[n]) for n in ranks]
    return replace(
        finding,
        kind="failed",
        severity="error",
        summary=f"{told[0]}; {then}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        file=raised["file"] or finding.file,
        line=raised["line"] if raised["file"] else finding.line,
        function=None if raised["file"] else finding.function,
        innocent=innocents(waits, ranks),
        evidence=(*finding.evidence, *told[1:MOST]),
        cure=CURE,
    )


def _failed(rank: Rank) -> list[Helper]:
    """Those that have failed by themselves."""
    return [
        one
        for one in rank.helpers
        if one.has_failed and not consequence((one.exception or {}).get("chain") or ())
    ]


def _reason(rank: Rank, evidence: Evidence) -> Helper | None:
    """The last of those that have failed, if it is why the rank waits; None: that is not known."""
    failed = _failed(rank)
    if rank.ended is not None or not _waits(rank) or _has_others(rank):
        return None
    last = max(failed, key=lambda one: one.time or 0.0)
    if last.time is not None and _went_on(rank, last.time):
        return None
    same = (one for one in evidence.ranks.values() if one.number != rank.number)
    if any(_reason_of(one) == _reason_of(last) for other in same for one in _lost_elsewhere(other)):
        return None
    return last


def _lost_elsewhere(rank: Rank) -> Iterable[Helper]:
    """Those without which a rank goes on all the same: so may others."""
    return () if _waits(rank) else _failed(rank)


def _reason_of(one: Helper) -> Reason:
    if one.exception is not None:
        return reason_of(one.exception)
    return (one.name, one.code)


def _waits(rank: Rank) -> bool:
    """Whether it waits where another thread or process is to bring or to release something."""
    if rank.is_busy or not (rank.is_idle or rank.cpu_share is None):
        return False
    site = activity_of(rank).site
    if site is None:
        return False
    depth = rank.frames.index(site)
    if depth == 0:
        return WAITING_IN_C.search(site.code or "") is not None
    return rank.frames[0].file.endswith(WAITING)


def _has_others(rank: Rank) -> bool:
    """Whether processes go on that may bring it yet, or threads: but a library's that wait, too."""
    if any(one.runs for one in rank.helpers):
        return True
    beside = [stack for stack in rank.stacks[1:] if stack and stack is not rank.frames]
    return any(
        not stack[0].file.endswith(WAITING) or any(frame.user for frame in stack)
        for stack in beside
    )


def _went_on(rank: Rank, since: float) -> bool:
    """Whether it has come by one line more often since than what was in a queue tells."""
    calls = [one for one in rank.collectives if (one.time or 0.0) > since]
    rounds = Counter(place_of(one.site) for one in calls)
    return max(rounds.values(), default=0) > AHEAD


def _told(rank: Rank, one: Helper) -> str:
    """`thread Thread-1 of rank 2 (node2, local 0) has ended: it raised ValueError: x (t.py:9)`."""
    what = "thread" if one.pid is None else "process"
    named = f"{what} {one.name} of rank {rank.number} ({rank.node}, local {rank.local_rank})"
    if one.exception is not None:
        return f"{named} has ended: it {exception_in_words(one.exception)}"
    code = one.code or 0
    if code < 0:
        return f"{named} was ended by {signal_in_words(-code)}"
    return f"{named} has ended with exit code {code}"
