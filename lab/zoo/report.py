"""All scores of one pass through the zoo."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from lab.channel import Progress
from lab.topology import Place
from lab.zoo.case import Case
from lab.zoo.runner import Zoo
from lab.zoo.score import Score, false_alarms
from lab.zoo.workloads import Workload


@dataclass(frozen=True)
class Report:
    """How right lab was."""

    on: Place
    """Where all of it was run."""
    scores: list[Score]
    alarms: dict[str, list[str]]
    """By workload, what was said against it."""
    left_out: Sequence[Case] = ()
    """What cannot occur there."""

    @property
    def ok(self) -> bool:
        """Whether nothing was missed and nothing was said against what is healthy."""
        return all(score.ok for score in self.scores) and not any(self.alarms.values())

    @property
    def sums(self) -> str:
        """The counts, in one line."""
        count, right = len(self.scores), [score for score in self.scores if score.kind]
        lined = [score for score in self.scores if score.case.lines]
        wrong = [score for score in self.scores if score.alarms]
        again = sum(score.fault.again for score in self.scores)
        patient = f"; {again} run{'s' * (again > 1)} again with more patience" if again else ""
        return (
            f"on {self.on}: right kind {len(right)} of {count}, "
            f"ranks {sum(score.ranks for score in right)} of {count}, "
            f"line {sum(score.kind and score.line for score in lined)} of {len(lined)}; "
            f"false alarms {len(wrong) + sum(map(bool, self.alarms.values()))} "
            f"in {count + len(self.alarms)} healthy runs{patient}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        cases = [score.to_json() for score in self.scores]
        return {
            "ok": self.ok,
            "on": self.on,
            "sums": self.sums,
            "cases": cases,
            "left_out": {case.name: case.elsewhere for case in self.left_out},
            "workloads": self.alarms,
        }


def go_through(
    zoo: Zoo,
    cases: Sequence[Case],
    left_out: Sequence[Case],
    workloads: Sequence[Workload],
    progress: Progress,
) -> Report:
    """Run both twins of each case, and the workloads. `left_out`: what cannot occur there."""
    faults = [partial(zoo.run_case, case, "fault") for case in cases]
    twins = [partial(zoo.run_case, case, "healthy") for case in cases]
    others = [partial(zoo.run_workload, workload) for workload in workloads]
    outcomes = iter(zoo.each([*faults, *twins, *others], progress))
    fault = {case.name: next(outcomes) for case in cases}
    return Report(
        zoo.on,
        [Score(case, fault[case.name], next(outcomes)) for case in cases],
        {workload.name: false_alarms(next(outcomes)) for workload in workloads},
        left_out,
    )
