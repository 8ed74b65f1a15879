"""Judges of what each rank has seen by itself, at a line of the script."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from lab.diagnose.audit.records import Record
from lab.diagnose.finding import Finding


class ByLine(ABC):
    """Gathers the records of a line, and says it of all ranks that have seen it there."""

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._ranks: dict[tuple[Any, Any], dict[int, Record]] = {}

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        ranks = self._ranks.setdefault((record["file"], record["line"]), {})
        ranks.setdefault(rank, record)
        return [self._say(ranks)] if len(ranks) == self._world_size else []

    def close(self) -> list[Finding]:
        """See `Judge`."""
        return [self._say(ranks) for ranks in self._ranks.values()]

    @abstractmethod
    def _say(self, ranks: Mapping[int, Record]) -> Finding:
        """What is wrong on these ranks."""
