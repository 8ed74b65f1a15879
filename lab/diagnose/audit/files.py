"""Whether several ranks write the same file."""

from collections.abc import Mapping
from typing import Any

from lab.diagnose.audit.records import Record, line_of
from lab.diagnose.finding import Finding
from lab.diagnose.words import ranks_in_words


class Files:
    """Compares the files that ranks emptied and wrote, on file systems that they share."""

    checks = frozenset({"files"})

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._writers: dict[tuple[Any, ...], dict[int, Record]] = {}
        self._empty: dict[tuple[Any, ...], dict[int, Record]] = {}
        """Ranks that have seen nothing in a file that they opened: a lock, or emptied by others."""

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        known = self._empty if record["empty"] else self._writers
        writers = known.setdefault(tuple(record["key"]), {})
        writers[rank] = record
        return self._say(writers) if known is self._writers and self._are_all(writers) else []

    def close(self) -> list[Finding]:
        """What some ranks wrote, but not all."""
        found = []
        for key, writers in self._writers.items():
            if len(writers) > 1 and not self._are_all(writers):
                found += self._say({**self._empty.get(key, {}), **writers})
        return found

    def _are_all(self, writers: Mapping[int, Record]) -> bool:
        return len(writers) == self._world_size > 1

    def _say(self, writers: Mapping[int, Record]) -> list[Finding]:
        ranks = sorted(writers)
        first = writers[ranks[0]]
        return [
            Finding(
                kind="same-file",
                severity="error",
                summary=f"{ranks_in_words(ranks)} write the same file, {first['path']}: what is "
                "left in it is any of theirs, or a mixture",
                ranks=tuple(ranks),
                step=first["step"],
                **line_of(first),
                evidence=tuple(
                    f"rank {rank} opened {writers[rank]['path']} to write it anew at "
                    f"{writers[rank]['file']}:{writers[rank]['line']}, step {writers[rank]['step']}"
                    for rank in ranks
                ),
                cure="let one rank write it (`if rank == 0:`), or give each rank a file of its own",
            )
        ]
