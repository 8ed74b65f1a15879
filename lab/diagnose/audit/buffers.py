"""Buffers, such as the statistics of BatchNorm, that differ where models are evaluated."""

from collections.abc import Mapping

from lab.diagnose.audit.layouts import listed, minority, unpacked
from lab.diagnose.audit.records import Record
from lab.diagnose.finding import Finding
from lab.diagnose.words import ranks_in_words


class Buffers:
    """Compares the ranks' buffers at each evaluation; at the end, where there was none.

    Only of ranks that train one model, by their parameters, or by having parts of them.
    """

    checks = frozenset({"layout", "replica", "buffers"})

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._weights: dict[int, set[object]] = {}
        self._begin: dict[int, Record] = {}
        self._evaluations: dict[object, dict[int, Record]] = {}
        """By step and line: ranks may evaluate alone in between."""
        self._end: dict[int, Record] = {}
        self._parts: set[int] = set()

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        if record["check"] == "layout":
            if any(record["parts"]):
                self._parts.add(rank)
        elif record["check"] == "replica":
            if record["count"] > 1:
                weights = record["optimizer"], record["count"], record["parameters"]
                self._weights.setdefault(rank, set()).add(hash(weights))
        elif record["when"] == "begin":
            self._begin[rank] = record
        elif record["when"] == "end":
            self._end[rank] = record
        else:
            place = record["step"], record["file"], record["line"]
            ranks = self._evaluations.setdefault(place, {})
            ranks.setdefault(rank, record)
            if len(ranks) == self._world_size:
                return self._compare(self._evaluations.pop(place))
        return []

    def close(self) -> list[Finding]:
        """See `Judge`."""
        evaluated = any(record["evaluation"] for record in self._end.values())
        compared = list(self._evaluations.values()) if evaluated else [self._end]
        return [finding for records in compared for finding in self._compare(records)]

    def _compare(self, records: Mapping[int, Record]) -> list[Finding]:
        names = [tuple(record["names"]) for record in records.values()]
        if len(records) < 2 or len(set(names)) > 1 or not self._train_one(records):
            return []
        columns = {rank: unpacked("I", record["digests"]) for rank, record in records.items()}
        begun = {r: unpacked("I", self._begin[r]["digests"]) for r in records if r in self._begin}
        differing = [
            place
            for place, column in enumerate(zip(*columns.values(), strict=True))
            if len(set(column)) > 1
            and any(
                r in begun and begun[r][place : place + 1] != (columns[r][place],) for r in columns
            )
        ]
        if not differing:
            return []
        guilty = minority({r: tuple(column[p] for p in differing) for r, column in columns.items()})
        record = records[guilty[-1]]
        evaluates = record["when"] == "evaluation"
        when = "evaluate the model with" if evaluates else "end with"
        return [
            Finding(
                "buffers-differ",
                "error" if evaluates else "warning",
                f"{ranks_in_words(guilty)} {when} buffers of their own: "
                f"{listed([names[0][place] for place in differing])}",
                ranks=guilty,
                step=record["step"],
                file=record.get("file"),
                line=record.get("line"),
                function=record.get("function"),
                evidence=(
                    "each rank updates its statistics with its own samples, and nothing makes them "
                    "equal",
                ),
                cure="leave broadcast_buffers of DistributedDataParallel on, take SyncBatchNorm, "
                "or average or send the buffers before the model is evaluated or saved",
            )
        ]

    def _train_one(self, ranks: Mapping[int, Record]) -> bool:
        if ranks.keys() <= self._parts:
            return True
        sets = [self._weights.get(rank, set()) for rank in ranks]
        return bool(set.intersection(*sets))
