"""Whether the ranks have met each other."""

from collections.abc import Mapping, Sequence

from lab.diagnose.audit.records import Record, line_of
from lab.diagnose.finding import Finding
from lab.diagnose.words import ranks_in_words


class Worlds:
    """Looks for ranks that have joined under the same number: they cannot be in one world."""

    checks = frozenset({"world"})

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._joined: dict[int, Record] = {}

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        self._joined[rank] = record  # a script may leave a world, and join another one
        return []

    def close(self) -> list[Finding]:
        """Who has joined as whom; by now all have."""
        together: dict[int, list[int]] = {}
        for rank, record in sorted(self._joined.items()):
            together.setdefault(record["rank"], []).append(rank)
        twins = [ranks for ranks in together.values() if len(ranks) > 1]
        return [self._say(twins[0], self._joined)] if twins else []

    def _say(self, twins: Sequence[int], joined: Mapping[int, Record]) -> Finding:
        first = joined[twins[0]]
        sizes = sorted({record["size"] for record in joined.values()})
        alone = ": each trains alone" if sizes == [1] else ""
        return Finding(
            kind="separate-worlds",
            severity="warning",
            summary=f"the run has {self._world_size} ranks, and they are in worlds of "
            f"{' and '.join(map(str, sizes))}: {ranks_in_words(twins)} have each joined one as "
            f"rank {first['rank']}{alone}",
            ranks=tuple(sorted(joined)),
            step=first["step"],
            **line_of(first),
            evidence=tuple(
                f"rank {rank} has joined as rank {record['rank']} of {record['size']}"
                for rank, record in sorted(joined.items())
            ),
            cure="leave rank and world_size out of init_process_group, or take them from RANK and "
            "WORLD_SIZE, so that all ranks are in one world",
        )
