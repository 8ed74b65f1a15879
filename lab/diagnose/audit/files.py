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

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        writers = self._writers.setdefault(tuple(record["key"]), {})
        writers[rank] = record
        return self._say(writers) if len(writers) == self._world_size > 1 else []

    def close(self) -> list[Finding]:
        """What some ranks wrote, but not all."""
        some = [w for w in self._writers.values() if 1 < len(w) < self._world_size]
        return [finding for writers in some for finding in self._say(writers)]

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
