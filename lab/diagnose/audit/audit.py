"""All judges of a run at once: records go in, findings come out, each once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from lab.diagnose.audit.batches import Batches
from lab.diagnose.audit.buffers import Buffers
from lab.diagnose.audit.chance import Noise, Splits
from lab.diagnose.audit.collectives import Collectives
from lab.diagnose.audit.devices import DataParallel, SharedGpu
from lab.diagnose.audit.files import Files
from lab.diagnose.audit.gradients import LocalNorm, NoGradient, NotWaitedFor, ReducedTwice
from lab.diagnose.audit.held_back import HeldBack
from lab.diagnose.audit.loaders import Loaders
from lab.diagnose.audit.modes import Modes
from lab.diagnose.audit.nan import NotFinite
from lab.diagnose.audit.pace import Pace
from lab.diagnose.audit.records import Record
from lab.diagnose.audit.replicas import Replicas
from lab.diagnose.audit.reports import Reports
from lab.diagnose.audit.steppers import Steppers
from lab.diagnose.audit.worlds import Worlds
from lab.diagnose.finding import Finding


class Judge(Protocol):
    """Compares the records of some checks."""

    checks: frozenset[str]
    """Whose records it wants."""

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """Take a record of a rank; what is certain by now. Ranks' records come in any order."""

    def close(self) -> list[Finding]:
        """The ranks have ended: what can only be said now."""


JUDGES: tuple[Callable[[int], Judge], ...] = (
    *(Replicas, NotFinite, ReducedTwice, NotWaitedFor, HeldBack, LocalNorm, NoGradient, Buffers),
    *(Collectives, Batches, Loaders, Files, Noise, Splits, Modes, SharedGpu, DataParallel),
    *(Reports, Pace, Steppers, Worlds),
)
"""Each is made with the world size."""


class Audit:
    """Hands each record to its judges."""

    def __init__(self, world_size: int, nodes: Mapping[int, str]) -> None:
        """`nodes`: each rank's node."""
        self.findings: list[Finding] = []
        self.broken: list[str] = []
        """Judges that have raised, and what: left out, since no run must end by them."""
        self._nodes = nodes
        self._judges = [judge(world_size) for judge in JUDGES]

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """What the record shows that had not been found before."""
        return self._ask(
            lambda judge: judge.feed(rank, record) if record["check"] in judge.checks else []
        )

    def close(self) -> list[Finding]:
        """What shows now that the ranks have ended."""
        return self._ask(lambda judge: judge.close())

    def _ask(self, question: Callable[[Judge], list[Finding]]) -> list[Finding]:
        found = []
        for judge in list(self._judges):
            try:
                found += question(judge)
            except Exception as error:  # noqa: BLE001 - whatever it is, the run goes on
                self._judges.remove(judge)
                self.broken.append(f"{type(judge).__name__}: {type(error).__name__}: {error}")
        return self._new(found)

    def _new(self, found: Sequence[Finding]) -> list[Finding]:
        known = {_identity(finding) for finding in self.findings}
        new = []
        for finding in found:
            if _identity(finding) not in known:
                known.add(_identity(finding))
                nodes = dict.fromkeys(self._nodes[rank] for rank in finding.ranks)
                new.append(replace(finding, nodes=tuple(nodes)))
        self.findings += new
        return new


def _identity(finding: Finding) -> object:
    """Two findings of the same are one, at whatever step; a warning may become an error."""
    return finding.kind, finding.severity, finding.ranks, finding.file, finding.line
