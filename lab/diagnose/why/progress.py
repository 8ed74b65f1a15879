"""The verdict that nothing hangs: the ranks go on, slowly or well."""

from collections.abc import Mapping
from itertools import pairwise

from lab.diagnose.finding import Finding
from lab.diagnose.why.chains import roots
from lab.diagnose.why.evidence import IDLE, WATCHED, Evidence, Rank
from lab.diagnose.why.telling import seen
from lab.diagnose.why.waits import Wait, has_gone
from lab.diagnose.words import ranks_in_words

JUST_NOW = 5.0
"""Seconds for which ranks may wait before whoever asks is told of a hang."""
OFTEN = 2
"""How often ranks must have waited that long before, to be taken as used to it."""
LONGER = 2.0
"""How much longer than usual a wait may be."""


def judge_progress(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Say that the run goes on, where collectives begin or no rank waits for another."""
    living = {n: rank for n, rank in evidence.ranks.items() if rank.ended is None}
    if evidence.because == "failure" or not living or any(r.is_stopped for r in living.values()):
        return None
    moving = {n: moved for n, rank in living.items() if (moved := _moved(evidence, rank))}
    if moving and evidence.because == "asked":  # a stall is what has not moved since
        count = sum(moving.values())
        what = f"{ranks_in_words(tuple(moving))} began {count} collectives while being watched"
        return _slow(what, *(f"rank {n} began {count}" for n, count in moving.items()))
    silent = {node.name for node in evidence.nodes.values() if not node.answered}
    if all(r.is_busy and n not in waits and r.node not in silent for n, r in living.items()):
        what = f"no rank waits for another, {ranks_in_words(tuple(living))} are computing"
        return _slow(what, *(seen(rank) for rank in living.values()))
    together = {wait.what for wait in waits.values()}
    all_there = len(waits) == len(evidence.ranks) and not any(w.awaited for w in waits.values())
    if all_there and len(together) == 1 and (late := _just_come(evidence)):
        what = f"all ranks are in {together.pop()}, {ranks_in_words(late)} since a moment ago"
        return _slow(what, *(seen(rank) for rank in living.values()))
    if all_there and len(together) == 1 and _transfer(evidence):
        what = f"all ranks are in {together.pop()}, and its data are being moved"
        return _slow(what, *(seen(rank) for rank in living.values()))
    return None


def judge_patience(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Say that the ranks wait as long as they often do, where that is so."""
    late = roots(waits)
    ended = any(has_gone(evidence.ranks[n]) for n in late)
    if evidence.because == "failure" or not late or ended:
        return None
    patience = JUST_NOW if evidence.because == "asked" else 0.0
    longest, is_usual = 0.0, True
    for number, wait in waits.items():
        rank = evidence.ranks[number]
        if wait.since is None or rank.time is None:
            return None
        waited, usual = rank.time - wait.since, LONGER * _usual(rank)
        if waited > max(patience, usual):
            return None
        longest, is_usual = max(longest, waited), is_usual and waited <= usual
    told = [seen(evidence.ranks[number]) for number in late]
    if is_usual:
        what = f"others wait for {ranks_in_words(late)}, but not longer than they are used to"
        return _slow(what, *told)
    what = f"others have waited for {ranks_in_words(late)} for {longest:.1f} s"
    return Finding("slow", "warning", f"too early to tell: {what}", evidence=tuple(told))


def _slow(what: str, *told: str) -> Finding:
    return Finding("slow", "warning", f"no hang: {what}", evidence=told)


def _moved(evidence: Evidence, rank: Rank) -> int:
    """How many collectives it began while it was watched."""
    looks = [look for look in rank.pulses if look.seqs and evidence.time - look.time < WATCHED]
    if len(looks) < 2:
        return 0
    return sum(max(0, n - looks[0].seqs.get(group, n)) for group, n in looks[-1].seqs.items())


def _just_come(evidence: Evidence) -> tuple[int, ...]:
    """The ranks that were elsewhere a moment ago."""
    recent = {
        number: {pulse.where for pulse in rank.pulses if evidence.time - pulse.time < JUST_NOW}
        for number, rank in evidence.ranks.items()
    }
    return tuple(number for number, places in recent.items() if len(places - {None}) > 1)


def _transfer(evidence: Evidence) -> bool:
    return any((rank.cpu_share or 0.0) > IDLE for rank in evidence.ranks.values())


def _usual(rank: Rank) -> float:
    """Seconds between two of its collectives, as they were at least `OFTEN`."""
    times = [call.time for call in rank.collectives if call.time is not None]
    gaps = sorted((later - earlier for earlier, later in pairwise(times)), reverse=True)
    return gaps[OFTEN - 1] if len(gaps) >= OFTEN else 0.0
