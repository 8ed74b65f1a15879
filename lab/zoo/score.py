"""Whether lab was right about a case: the kind, the guilty rank, the line, and no false alarm."""

from dataclasses import dataclass
from typing import Any

from lab.diagnose.finding import Finding
from lab.zoo.case import Case
from lab.zoo.runner import SCRIPT, Outcome


def findings(outcome: Outcome) -> list[Finding]:
    """What lab found in one run: why it did not go on, then what was silently wrong."""
    verdict = outcome.verdict
    why = [verdict["why"]] if verdict.get("why") else []
    return [Finding.from_json(data) for data in (*why, *verdict.get("findings", ()))]


def false_alarms(outcome: Outcome) -> list[str]:
    """What lab said against a run that is healthy, one sentence each; none is right."""
    alarms = [f"{finding.kind}: {finding.summary}" for finding in findings(outcome)]
    if alarms or outcome.verdict.get("kind") == "ok":
        return alarms
    return [outcome.verdict.get("summary") or outcome.said or "the run had no verdict"]


@dataclass(frozen=True)
class Score:
    """Of one case: both twins."""

    case: Case
    fault: Outcome
    healthy: Outcome

    @property
    def found(self) -> Finding | None:
        """What is judged: of the right kind if there is one, and of these the one most right."""
        all_found = findings(self.fault)
        right = [one for one in all_found if one.kind == self.case.expect.kind]
        return max(right or all_found, key=self._rightness, default=None)

    @property
    def kind(self) -> bool:
        """Whether the kind is right."""
        return self.found is not None and self.found.kind == self.case.expect.kind

    @property
    def ranks(self) -> bool:
        """Whether exactly the guilty ranks are named."""
        return self.found is not None and self._names_ranks(self.found)

    @property
    def line(self) -> bool:
        """Whether a line of the fault is named; nothing to be named is right, too."""
        return self.found is not None and self._names_line(self.found)

    @property
    def others(self) -> list[Finding]:
        """What was found besides, and does not follow from the fault."""
        expected = {self.case.expect.kind, *self.case.also}
        return [one for one in findings(self.fault) if one.kind not in expected]

    @property
    def alarms(self) -> list[str]:
        """What was said against the healthy twin."""
        return false_alarms(self.healthy)

    @property
    def ok(self) -> bool:
        """Whether all of it is right."""
        return self.kind and self.ranks and self.line and not self.others and not self.alarms

    @property
    def faults(self) -> list[str]:
        """What is not right, in words."""
        found, expect = self.found, self.case.expect
        if found is None:
            summary = self.fault.verdict.get("summary") or self.fault.said
            return [f"{expect.kind} was not found: {summary}", *self._said_of_twin()]
        said = []
        if not self.kind:
            said.append(f"{expect.kind} was not found, but {found.kind}: {found.summary}")
        if not self.ranks:
            said.append(f"ranks {list(found.ranks)} instead of {expect.ranks}: {found.summary}")
        if not self.line:
            where = f"{found.file}:{found.line}" if found.line else "no line"
            said.append(f"{where} instead of line {sorted(self.case.lines)}: {found.summary}")
        said += [f"besides {one.kind}: {one.summary}" for one in self.others if one is not found]
        return said + self._said_of_twin()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "case": self.case.name,
            "ok": self.ok,
            "expected": self.case.expect.model_dump(mode="json"),
            "lines": sorted(self.case.lines),
            "kind": self.kind,
            "ranks": self.ranks,
            "line": self.line,
            "found": None if self.found is None else self.found.to_json(),
            "others": [one.to_json() for one in self.others],
            "false_alarms": self.alarms,
            "runs": {"fault": self.fault.run, "healthy": self.healthy.run},
            "faults": self.faults,
        }

    def _said_of_twin(self) -> list[str]:
        return [f"false alarm on the healthy twin: {alarm}" for alarm in self.alarms]

    def _rightness(self, finding: Finding) -> int:
        return self._names_ranks(finding) + self._names_line(finding)

    def _names_ranks(self, finding: Finding) -> bool:
        return self.case.expect.ranks in ("any", finding.ranks)

    def _names_line(self, finding: Finding) -> bool:
        """A rank that has ended is at no line; those who wait for it are."""
        places = [(finding.file, finding.line)]
        if finding.line is None:
            places = [(innocent.file, innocent.line) for innocent in finding.innocent]
        return not self.case.lines or any(
            file is not None and file.endswith(SCRIPT) and line in self.case.lines
            for file, line in places
        )
