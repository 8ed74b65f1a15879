"""What is told beside a finding: ranks that are no part of it, and have troubles of their own."""

from collections.abc import Mapping
from dataclasses import replace

from lab.diagnose.finding import Finding
from lab.diagnose.why.activity import activity_of
from lab.diagnose.why.chains import roots
from lab.diagnose.why.evidence import Evidence, Json, Rank
from lab.diagnose.why.handling import handled_alone, reason_of
from lab.diagnose.why.telling import does, seen
from lab.diagnose.why.waits import Wait
from lab.diagnose.why.wording import exception_in_words, who
from lab.diagnose.words import ranks_in_words
from lab.node.victims import consequence

A_WHILE = 1.0
"""Seconds: one rank is always the last to come, but not by so much."""


def with_others(finding: Finding, evidence: Evidence, waits: Mapping[int, Wait]) -> Finding:
    """The finding with a sentence of evidence for each other reason to hang or to fail."""
    if finding.kind == "slow":
        return finding
    others = {n: rank for n, rank in evidence.ranks.items() if n not in finding.ranks}
    is_hang = finding.ranks and evidence.because != "failure"
    late = _late(others, waits) if is_hang else []
    sentences = [seen(rank) for rank in late]
    return replace(
        finding,
        evidence=(
            *(one for one in finding.evidence if one not in sentences),
            *(f"besides, {one}, and is waited for, too" for one in sentences),
            *_kept_waiting(finding, evidence, waits),
            *_raised(finding, evidence, others),
        ),
    )


def _late(others: Mapping[int, Rank], waits: Mapping[int, Wait]) -> list[Rank]:
    """Those for whom others wait, while they wait for nobody, as far as is known what they do."""
    return [others[n] for n in roots(waits) if n in others and others[n].is_in_script]


def _kept_waiting(finding: Finding, evidence: Evidence, waits: Mapping[int, Wait]) -> list[str]:
    """For whom others had waited for a while when a rank ended that has not said why.

    It may have been told to end since nothing went on: by a watchdog in it, or by somebody else.
    """
    failure = evidence.failure
    if failure is None or finding.kind != "failed" or not _is_without_a_word(failure):
        return []
    others = {n: rank for n, rank in evidence.ranks.items() if n not in finding.ranks}
    sentences = []
    for late in _late(others, waits):
        waiting = [one for one in waits.values() if late.number in one.awaited]
        longest = max(waiting, key=lambda one: _seconds(evidence, one))
        if _seconds(evidence, longest) >= A_WHILE:
            alike = sorted(one.rank for one in waiting if one.what == longest.what)
            sentences.append(
                f"when {ranks_in_words(finding.ranks)} ended, {ranks_in_words(alike)} had waited "
                f"for {_seconds(evidence, longest):.0f} s in {longest.what} for rank "
                f"{late.number}, which {does(late, activity_of(late))}"
            )
    return sentences


def _is_without_a_word(failure: Json) -> bool:
    """Whether nothing is known but a code or a signal."""
    is_end = failure.get("kind") in ("exit", "signal")
    return is_end and failure.get("file") is None and failure.get("oom_limit") is None


def _seconds(evidence: Evidence, wait: Wait) -> float:
    """For how long a rank had waited when it was asked, by the clock of its node."""
    asked = evidence.ranks[wait.rank].time
    return 0.0 if asked is None or wait.since is None else asked - wait.since


def _raised(finding: Finding, evidence: Evidence, others: Mapping[int, Rank]) -> list[str]:
    """What others have raised, or handle where that may be why."""
    handled: Mapping[int, Json | None] = {}
    if finding.kind == "failed":
        handled = handled_alone(evidence)
    elif finding.kind == "unknown":
        handled = {number: rank.handles for number, rank in others.items()}
    alike: dict[tuple[str, str | None, int | None], dict[int, Json]] = {}
    for number, rank in others.items():
        exception = rank.exception or handled.get(number)
        if exception is not None and not consequence(exception.get("chain") or ()):
            alike.setdefault(reason_of(exception), {})[number] = exception
    return [
        f"besides, {who(together, evidence)} {exception_in_words(next(iter(together.values())))}"
        for together in alike.values()
    ]
