"""The verdict on ranks that have not ended, while nobody waits for them and all others have."""

from collections.abc import Mapping

from lab.diagnose.finding import Finding
from lab.diagnose.why.activity import activity_of
from lab.diagnose.why.evidence import Evidence
from lab.diagnose.why.telling import at, does, seen
from lab.diagnose.why.waits import Wait
from lab.diagnose.why.wording import who

CURE = (
    "end what it waits for: a process or thread of its own (daemon=True, or close() and join() "
    "what a logger has begun)"
)


def judge_lingering(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Name them, and what they do; None where others go on, or have failed."""
    left = {n: rank for n, rank in evidence.ranks.items() if rank.ended is None}
    ended = [rank.ended for rank in evidence.ranks.values() if rank.ended is not None]
    if waits or not left or not ended or any(one["code"] for one in ended):
        return None
    if not all(rank.frames for rank in left.values()):
        return None
    ranks = tuple(sorted(left))
    first = left[ranks[0]]
    has = "has" if len(ranks) == 1 else "have"
    finding = Finding(
        "busy-alone",
        "error",
        f"{who(ranks, evidence)} {has} not ended, and all others have: rank {first.number} "
        f"{does(first, activity_of(first))}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        evidence=tuple(seen(rank) for rank in evidence.ranks.values())[:16],
        cure=CURE,
    )
    return at(finding, activity_of(first).site)
