"""Whether the ranks begin with the same weights."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from lab.diagnose.finding import Finding
from lab.diagnose.words import ranks_in_words


class Start:
    """Compares the parameters that each optimizer finds at its first step."""

    checks = frozenset({"start"})

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._seen: dict[int, dict[int, Mapping[str, Any]]] = {}  # optimizer -> rank -> record

    def feed(self, rank: int, record: Mapping[str, Any]) -> list[Finding]:
        """See `Judge`."""
        ranks = self._seen.setdefault(record["optimizer"], {})
        ranks[rank] = record
        if len(ranks) < self._world_size:
            return []
        return self._compare(ranks)

    def close(self) -> list[Finding]:
        """See `Judge`."""
        return []

    def _compare(self, ranks: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
        digests = {rank: tuple(record["digests"]) for rank, record in ranks.items()}
        (most, count), *others = Counter(digests.values()).most_common()
        if not others:
            return []
        guilty = tuple(sorted(rank for rank in ranks if digests[rank] != most))
        if count == 1:
            guilty = tuple(sorted(ranks))
        record = ranks[guilty[-1]]
        return [
            Finding(
                "weights-differ-at-start",
                "error",
                f"{ranks_in_words(guilty)} begin with other weights",
                ranks=guilty,
                step=1,
                file=record["file"],
                line=record["line"],
                function=record["function"],
            )
        ]
