"""The verdict that nothing hangs: the ranks go on, slowly or well."""

from collections.abc import Mapping

from lab.diagnose.finding import Finding
from lab.diagnose.why.activity import activity_of
from lab.diagnose.why.evidence import Evidence, Rank
from lab.diagnose.why.waits import Wait
from lab.diagnose.why.wording import site_in_words
from lab.diagnose.words import ranks_in_words

JUST_NOW = 5.0
"""Seconds before the evidence in which a collective counts as progress."""


def judge_progress(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Say that the run goes on, where collectives move or no rank waits for another."""
    if evidence.because == "failure" or any(rank.is_stopped for rank in evidence.ranks.values()):
        return None
    moving = {n: moved for n, rank in evidence.ranks.items() if (moved := _moved(evidence, rank))}
    if moving:
        total = sum(moving.values())
        return Finding(
            "slow",
            "warning",
            f"no hang: {ranks_in_words(tuple(moving))} began {total} collectives while being "
            "watched",
            evidence=tuple(
                f"rank {n} began {count}{_at(evidence.ranks[n])}" for n, count in moving.items()
            ),
        )
    computing = [
        n
        for n, rank in evidence.ranks.items()
        if n not in waits and rank.ended is None and rank.is_busy
    ]
    if computing and len(computing) == len(evidence.ranks):
        return Finding(
            "slow",
            "warning",
            f"no hang: no rank waits for another, {ranks_in_words(computing)} are all computing",
            evidence=tuple(f"rank {n} is{_at(evidence.ranks[n])}" for n in computing),
        )
    return None


def _moved(evidence: Evidence, rank: Rank) -> int:
    """How many collectives it began from the first look that is not long ago to the last."""
    looks = [p for p in rank.pulses if p.seqs and evidence.time - p.time < 2 * JUST_NOW]
    if len(looks) < 2:
        return 0
    return sum(max(0, n - looks[0].seqs.get(group, n)) for group, n in looks[-1].seqs.items())


def _at(rank: Rank) -> str:
    activity = activity_of(rank)
    return site_in_words(activity.site, activity.function)
