"""What a lesson found: the ranks write it, the controller reads it. No torch here."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

RESULT = "{module}.json"
"""A lesson's report in the run directory, by the module that was run."""


@dataclass(frozen=True)
class Finding:
    """One thing that was measured, beside what theory says."""

    what: str
    measured: str
    theory: str
    holds: bool | None
    """Whether it is as theory says; None: shown and not judged, since it depends on the machine."""

    def __str__(self) -> str:
        mark = {True: "holds", False: "FAILS", None: "shown"}[self.holds]
        return f"{mark}  {self.what}: {self.measured} (theory: {self.theory})"


@dataclass(frozen=True)
class Report:
    """All findings of one lesson, in order, and where they were made."""

    world_size: int
    backend: str
    torch: str
    seconds: float
    """That it took, without the start of the ranks."""
    findings: tuple[Finding, ...]

    @property
    def failed(self) -> list[Finding]:
        """What is not as theory says."""
        return [finding for finding in self.findings if finding.holds is False]

    @property
    def judged(self) -> int:
        """How many findings were judged."""
        return sum(finding.holds is not None for finding in self.findings)

    @property
    def ok(self) -> bool:
        """Whether theory was right wherever it was asked."""
        return not self.failed

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"ok": self.ok, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Report":
        """The report that `to_json` wrote."""
        findings = tuple(Finding(**finding) for finding in data["findings"])
        return cls(
            **{field.name: data[field.name] for field in fields(cls)} | {"findings": findings}
        )
