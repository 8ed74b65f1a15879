"""Whether each rank has a GPU of its own, and keeps to it."""

from collections.abc import Mapping
from typing import Any

from lab.diagnose.audit.records import Record, line_of
from lab.diagnose.finding import Finding
from lab.diagnose.words import ranks_in_words


class SharedGpu:
    """Compares the GPUs on which ranks train."""

    checks = frozenset({"gpus"})

    def __init__(self, world_size: int) -> None:
        self._ranks: dict[str, dict[int, Record]] = {}

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        self._ranks.setdefault(record["uuid"], {})[rank] = record
        return []

    def close(self) -> list[Finding]:
        """Which GPUs had several ranks; by now all of these are known."""
        return [self._say(ranks) for ranks in self._ranks.values() if len(ranks) > 1]

    @staticmethod
    def _say(ranks: Mapping[int, Record]) -> Finding:
        name = next(iter(ranks.values()))["name"]
        return Finding(
            kind="shared-gpu",
            severity="warning",
            summary=f"{ranks_in_words(ranks)} train on one GPU ({name}): each is slower for the "
            "other, and has less memory",
            ranks=tuple(sorted(ranks)),
            evidence=tuple(
                f"rank {rank} has its parameters on cuda:{ranks[rank]['index']}, "
                f"{ranks[rank]['uuid']}"
                for rank in sorted(ranks)
            ),
            cure="torch.cuda.set_device(int(os.environ['LOCAL_RANK'])), and no more ranks on a "
            "node than it has GPUs",
        )


class DataParallel:
    """Looks for nn.DataParallel where there are several ranks."""

    checks = frozenset({"data-parallel"})

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._makers: dict[tuple[Any, Any], dict[int, Record]] = {}

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        makers = self._makers.setdefault((record["file"], record["line"]), {})
        makers[rank] = record
        return self._say(makers) if len(makers) == self._world_size > 1 else []

    def close(self) -> list[Finding]:
        """What not all ranks made."""
        some = [m for m in self._makers.values() if len(m) < self._world_size]
        return [finding for makers in some for finding in self._say(makers)]

    def _say(self, makers: Mapping[int, Record]) -> list[Finding]:
        ranks = sorted(makers)
        first = makers[ranks[0]]
        return [
            Finding(
                kind="data-parallel",
                severity="error",
                summary=f"{ranks_in_words(ranks)} wrap a model in nn.DataParallel, which uses all "
                "GPUs that a process sees and exchanges nothing with other ranks",
                ranks=tuple(ranks),
                step=first["step"],
                **line_of(first),
                evidence=(
                    f"nn.DataParallel over {first['devices']} devices was made on {len(ranks)} of "
                    f"{self._world_size} ranks",
                ),
                cure="torch.nn.parallel.DistributedDataParallel, with one GPU for each rank",
            )
        ]
