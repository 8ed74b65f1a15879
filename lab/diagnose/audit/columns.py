"""What the ranks noted of one and the same place, until all of them have come to it."""

from typing import Generic, TypeVar

from lab.diagnose.audit.records import Record

Column = dict[int, Record]
"""The records of all ranks, by rank."""
Place = TypeVar("Place")
KEPT = 4096
"""Places that wait for ranks which have not come to them."""


class Columns(Generic[Place]):
    """Gathers records by place: a step, a microbatch, an epoch."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._columns: dict[Place, Column] = {}

    def add(self, place: Place, rank: int, record: Record) -> Column | None:
        """Take a rank's record.

        Returns:
            The column, once the last rank has come to it; else None. Where ranks look at other
            places, as they do that have less time, the oldest are given up.
        """
        column = self._columns.setdefault(place, {})
        column[rank] = record
        if len(column) == self._world_size:
            return self._columns.pop(place)
        if len(self._columns) > KEPT:
            del self._columns[next(iter(self._columns))]
        return None
