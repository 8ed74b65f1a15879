"""From the evidence to the verdict: one question after another, and the first answer counts."""

from collections.abc import Callable, Mapping
from typing import Any

from lab.diagnose.finding import Finding
from lab.diagnose.why.aborted.judge import judge_aborted
from lab.diagnose.why.absent import judge_absent
from lab.diagnose.why.beside import with_others
from lab.diagnose.why.beyond import judge_beyond
from lab.diagnose.why.deadlock import judge_deadlock, judge_gone_past
from lab.diagnose.why.differing import judge_differing
from lab.diagnose.why.evidence import Evidence
from lab.diagnose.why.failed import judge_failed, judge_rest
from lab.diagnose.why.handling import with_handled
from lab.diagnose.why.helpers import with_helpers
from lab.diagnose.why.late import judge_late, judge_loading
from lab.diagnose.why.lingering import judge_lingering
from lab.diagnose.why.messages import narrowed
from lab.diagnose.why.other_root import judge_other_root
from lab.diagnose.why.overlooked import judge_end
from lab.diagnose.why.progress import judge_patience, judge_progress
from lab.diagnose.why.reading import read_evidence
from lab.diagnose.why.start import judge_claims, judge_imports, judge_start
from lab.diagnose.why.unknown import unknown
from lab.diagnose.why.waits import Wait, waits_of
from lab.diagnose.why.workers import with_workers

Question = Callable[[Evidence, Mapping[int, Wait]], Finding | None]

QUESTIONS: tuple[Question, ...] = (
    judge_claims,  # is each rank who it says it is?
    judge_failed,  # did a rank fail by itself?
    judge_progress,  # does it hang at all?
    judge_aborted,  # do the ranks call the same collectives, where gloo has aborted one?
    judge_differing,  # and where all have told?
    judge_other_root,  # with the same root?
    judge_absent,  # are all processes and nodes there, and can they reach each other?
    judge_imports,  # are ranks still on their way?
    judge_start,  # have all ranks joined?
    judge_patience,  # do steps take that long?
    judge_beyond,  # are some over, and others call what those never have?
    judge_late,  # for whom does everybody wait, and what does that rank do?
    judge_loading,  # does each wait for its own data?
    judge_gone_past,  # has somebody left out what the others wait in?
    judge_deadlock,  # do they wait in a circle?
    judge_lingering,  # is it only that some do not end?
    judge_rest,  # a rank has failed, and nothing of this is why
)
"""In the order in which a person would ask: what comes first would falsify what follows."""


def diagnose(evidence: Mapping[str, Any]) -> Finding:
    """Name who is guilty of a hang, or of the end of a run; `unknown` where nothing tells.

    Args:
        evidence: what was gathered from the nodes and ranks: docs/why.md describes it.
    """
    seen = read_evidence(evidence)
    waits = narrowed(seen, waits_of(seen))
    answers = (question(seen, waits) for question in QUESTIONS)
    finding = next((one for one in answers if one is not None), None) or unknown(seen, waits)
    finding = with_workers(with_handled(finding, seen, waits), seen)
    finding = with_helpers(finding, seen, waits)
    return with_others(finding, seen, waits)


def review(evidence: Mapping[str, Any]) -> Finding | None:
    """Say what has been wrong with a run that has ended well; None where nothing shows.

    Args:
        evidence: as of `diagnose`, with what the ranks said last.
    """
    return judge_end(read_evidence(evidence))
