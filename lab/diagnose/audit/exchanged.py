"""What ranks have sent each other, as far as it tells how they train."""

from collections.abc import Iterable
from dataclasses import dataclass

from lab.diagnose.audit.records import Record


@dataclass
class Exchanged:
    """What the script itself has sent between the ranks, as far as it tells how it trains."""

    steps: int = 0
    activations: int = 0
    """At how many steps something large was sent in forward or backward."""
    averages: bool = False
    """Whether parameters are averaged now and then."""
    copies_now: bool = False
    """Whether one rank's parameters were sent to all before this step."""
    elsewhere: bool = False
    """Whether ranks send to one another, or in subgroups."""
    losses: bool = False
    """Whether something small is put together, such as losses."""
    gradients: bool = False
    """Whether gradients are put together by hand."""
    updates: bool = False
    """Whether the optimizer has each rank update a part of the weights for all (ZeRO)."""
    late: int = 0
    """At how many steps gradients of the step before had been put together after it."""
    begins: bool = False
    """Whether something large was sent before the first step: the weights, most likely."""

    def note(self, records: Iterable[Record]) -> None:
        """Take what the ranks have sent before a step. Before the first, models are made equal."""
        sent = {what for record in records for what in record["exchanged"]}
        if self.steps:
            self.activations += bool(sent & {"forward", "backward"})
            self.averages |= "parameters" in sent
            self.copies_now = "copies" in sent
        else:
            self.begins = "forward" in sent
        self.elsewhere |= bool(sent & {"point_to_point", "subgroup"})
        self.losses |= "small" in sent
        self.gradients |= bool(sent & {"after", "late", "reduce"})
        self.updates |= "updates" in sent
        self.late += "late" in sent
        self.steps += 1

    @property
    def is_nothing(self) -> bool:
        """Whether they have sent nothing at all."""
        return self == Exchanged(steps=self.steps)

    @property
    def allows_differences(self) -> bool:
        """Whether replicas may differ on purpose."""
        return self.averages or self.elsewhere or self.activations * 2 > self.steps
