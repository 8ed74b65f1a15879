"""What is told beside a finding: ranks that are no part of it, and have troubles of their own."""

from collections.abc import Mapping
from dataclasses import replace

from lab.diagnose.finding import Finding
from lab.diagnose.why.chains import roots
from lab.diagnose.why.evidence import Evidence, Json, Rank
from lab.diagnose.why.handling import handled_alone, reason_of
from lab.diagnose.why.telling import seen
from lab.diagnose.why.waits import Wait
from lab.diagnose.why.wording import exception_in_words, who
from lab.node.victims import consequence


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
            *_raised(finding, evidence, others),
        ),
    )


def _late(others: Mapping[int, Rank], waits: Mapping[int, Wait]) -> list[Rank]:
    """Those for whom others wait, while they wait for nobody, as far as is known what they do."""
    return [others[n] for n in roots(waits) if n in others and others[n].is_in_script]


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
