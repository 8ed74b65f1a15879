"""Whether the ranks share the samples of a dataset out among themselves, anew in each epoch."""

import base64
import itertools
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from math import comb
from typing import Any

from lab.diagnose.audit.columns import Column, Columns
from lab.diagnose.audit.records import Record, line_of
from lab.diagnose.audit.together import Together
from lab.diagnose.finding import AuditKind, Finding
from lab.diagnose.words import ranks_in_words

AGREE = 0.8
"""Of the samples that two ranks both noted: how many have equal contents in one dataset."""
SHUFFLED = 0.25
"""How often a shuffled order goes down at least; about half the time, and a sorted one never."""

SHARES_BY_RANK = (
    "leave the sampler's num_replicas and rank at their defaults, which are the number of all "
    "ranks and the rank's own among them: LOCAL_RANK counts within a node"
)


@dataclass
class Covered:
    """What all ranks together have drawn in whole epochs, as `_set` has it."""

    drawn: int
    always: int
    """In each of the epochs."""
    epochs: int
    records: list[Record]
    """Of the last of them."""


class Loaders:
    """Compares the indices that the ranks' loaders drew, epoch by epoch."""

    checks = frozenset({"loaders", "batches"})

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._together = Together(world_size)
        self._epochs: Columns[tuple[object, int]] = Columns(world_size)
        self._orders: dict[tuple[object, int], Record] = {}  # by line and rank: the epoch before
        self._repeated: dict[object, set[int]] = {}
        self._covered: dict[object, Covered] = {}  # by line
        self._probes: dict[int, dict[int, int]] = {}

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        if record["check"] == "batches":
            self._together.feed(rank, record)
            return []
        line = record["file"], record["line"]
        self._probes.setdefault(rank, {}).update((i, digest) for i, digest in record["probes"])
        found = self._judge_order(line, rank, record)
        epoch = self._epochs.add((line, record["epoch"]), rank, record)
        if epoch is not None:
            found += self._judge_shares(line, epoch)
        return found

    def close(self) -> list[Finding]:
        """Samples that never came: by now there is no epoch left in which they might."""
        known = [one for one in self._covered.values() if not self._deals_wrongly(one.records[0])]
        return [finding for covered in known for finding in self._judge_missing(covered)]

    def _judge_order(self, line: object, rank: int, record: Record) -> list[Finding]:
        before = self._orders.get((line, rank))
        self._orders[line, rank] = record
        shuffled = record["descents"] > SHUFFLED * record["drawn"] > SHUFFLED * record["batch"]
        same = before is not None and before["order"] == record["order"]
        if not (shuffled and same and before and before["whole"] and record["whole"]):
            return []
        repeated = self._repeated.setdefault(line, set())
        repeated.add(rank)
        if len(repeated) < self._world_size:
            return []
        sampler = record["sampler"]
        distributed = "num_replicas" in record["options"]
        return [
            self._finding(
                "order-never-changes",
                record,
                range(self._world_size),
                f"epoch {record['epoch']} has the same shuffled order of samples as the epoch "
                f"before, on every rank: {sampler} draws it anew from the same seed",
                [
                    f"{sampler} drew the same {record['drawn']} of {record['size']} samples in "
                    f"the same order in epochs {record['epoch'] - 1} and {record['epoch']}"
                ],
                "call sampler.set_epoch(epoch) before each epoch"
                if distributed
                else "let the seed of the order depend on the epoch",
            )
        ]

    def _judge_shares(self, line: object, epoch: Column) -> list[Finding]:
        records = list(epoch.values())
        alike = {(record["dataset"], record["size"]) for record in records}
        again = any(
            record["options"].get("replacement")
            or record["drawn"] > _set(record, "samples").bit_count()
            for record in records
        )
        if len(alike) > 1 or again:
            return []  # other data; or samples are drawn with replacement
        found = self._judge_overlap(epoch)
        if all(record["whole"] for record in records):
            now = 0
            for record in records:
                now |= _set(record, "samples")
            before = self._covered.get(line, Covered(0, now, 0, records))
            self._covered[line] = covered = Covered(
                before.drawn | now, before.always & now, before.epochs + 1, records
            )
            found += self._judge_taken(epoch, now)
            if not found and self._deals_wrongly(records[0]):
                found += self._judge_missing(covered)
        return found

    def _judge_overlap(self, epoch: Column) -> list[Finding]:
        # Without the last batches: whoever fills these up takes samples that others have.
        parts = {rank: _set(record, "body") for rank, record in epoch.items()}
        if not any(parts.values()):
            parts = {rank: _set(record, "samples") for rank, record in epoch.items()}
        guilty: set[int] = set()
        twice = 0
        for a, b in itertools.combinations(sorted(parts), 2):
            both = (parts[a] & parts[b]).bit_count()
            same_order = epoch[a]["order"] == epoch[b]["order"]  # then their batches are the same
            if both and not same_order and self._have_same_data(a, b):
                guilty |= {a, b}
                twice += both
        # DistributedSampler fills up with so few; and who trains a model of its own takes them all.
        if twice < self._world_size or self._together.apart:
            return []
        one = epoch[min(guilty)]
        most = max(epoch[rank]["drawn"] for rank in guilty)
        whole = most > one["size"] * 0.9
        return [
            self._finding(
                "overlapping-samples",
                one,
                sorted(guilty),
                f"{ranks_in_words(guilty)} train on the same samples within an epoch: "
                + (
                    "each of them goes through the whole dataset"
                    if whole
                    else f"{twice / comb(len(guilty), 2):.0f} of about {most} are those of another"
                ),
                [
                    f"{ranks_in_words([rank])} drew {record['drawn']} of the {record['size']} "
                    f"samples in epoch {record['epoch']}, by {_sampler(record)}"
                    for rank, record in sorted(epoch.items())
                ],
                "share the dataset out: DataLoader(..., sampler=DistributedSampler(dataset)), with "
                "the same seed on every rank",
            )
        ]

    def _judge_taken(self, epoch: Column, drawn: int) -> list[Finding]:
        """Whether ranks take one share of a sampler that has as many as there are ranks."""
        numbers = {record["options"].get("num_replicas") for record in epoch.values()}
        taken: dict[int, list[int]] = {}
        for rank, record in sorted(epoch.items()):
            taken.setdefault(record["options"].get("rank"), []).append(rank)
        left = sorted(set(range(self._world_size)) - taken.keys())
        reach = _reach(epoch.values())
        missing = (reach & ~drawn).bit_count()
        if numbers != {self._world_size} or None in taken or not left or not missing:
            return []
        twice = {share: ranks for share, ranks in taken.items() if len(ranks) > 1}
        wrong = [r for share, ranks in twice.items() for r in ranks if r != share]
        one = epoch[wrong[0]]
        shares = f"share{'s' * (len(left) > 1)} {', '.join(map(str, left))}"
        told = [f"{ranks_in_words(ranks)} all take share {n}" for n, ranks in twice.items()]
        told[1:] = [words.replace("all take ", "") for words in told[1:]]
        return [
            self._finding(
                "missing-samples",
                one,
                sorted(wrong),
                f"{missing} of {reach.bit_count()} samples are trained on by no rank in epoch "
                f"{one['epoch']}: nobody takes {shares} of the sampler's {self._world_size}, since "
                f"{' and '.join(told)}",
                [f"{ranks_in_words(r)}: {_sampler(epoch[r[0]])}" for r in taken.values()],
                SHARES_BY_RANK,
            )
        ]

    def _deals_wrongly(self, record: Record) -> bool:
        """Whether its sampler deals out to another number of ranks: no need to wait for the end."""
        replicas: int = record["options"].get("num_replicas", self._world_size)
        return replicas != self._world_size

    def _judge_missing(self, covered: Covered) -> list[Finding]:
        records, drawn, epochs = covered.records, covered.drawn, covered.epochs
        one = records[0]
        reach = _reach(records)
        missing = (reach & ~drawn).bit_count()
        tail = sum(record["batch"] for record in records)  # that `drop_last` may leave out
        replicas = one["options"].get("num_replicas")
        wrong_world = self._deals_wrongly(one)
        if missing <= tail or not (wrong_world or epochs > 1):
            return []
        if not wrong_world and (drawn & ~covered.always).bit_count() > tail:
            return []  # chosen anew in each epoch, or more and more: on purpose
        if replicas is None and missing > reach.bit_count() / 2:
            return []  # a sampler of the script's own that wants but a few
        said = f"; its sampler shares out to {replicas} ranks, and there are {self._world_size}"
        return [
            self._finding(
                "missing-samples",
                one,
                (),
                f"{missing} of {reach.bit_count()} samples are trained on by no rank in "
                f"{'a whole epoch' if epochs == 1 else f'{epochs} whole epochs'}"
                f"{said if wrong_world else ''}",
                [
                    f"all {self._world_size} ranks together drew {drawn.bit_count()} of "
                    f"{one['size']} samples in {epochs} epoch{'s' * (epochs > 1)}, "
                    f"by {_sampler(one)}"
                ],
                "give the sampler the number of ranks that there are (its default)"
                if wrong_world
                else "share all samples out among the ranks",
            )
        ]

    def _have_same_data(self, a: int, b: int) -> bool:
        """Whether the same index is the same sample on two ranks, as far as was seen."""
        ours, theirs = self._probes[a], self._probes[b]
        both = ours.keys() & theirs.keys()
        return sum(ours[i] == theirs[i] for i in both) >= max(1, AGREE * len(both))

    @staticmethod
    def _finding(
        kind: AuditKind, at: Record, ranks: Any, summary: str, evidence: list[str], cure: str
    ) -> Finding:
        return Finding(
            kind=kind,
            severity="error",
            summary=summary,
            ranks=tuple(ranks),
            step=at["step"],
            **line_of(at),
            evidence=tuple(evidence),
            cure=cure,
        )


def _reach(records: Iterable[Record]) -> int:
    """The samples that the ranks could have drawn, as `_set` has them."""
    reach = 0
    for record in records:
        everything = (1 << record["size"]) - 1
        reach |= everything if record["within"] is None else _set(record, "within")
    return reach


def _set(record: Record, name: str) -> int:
    """A set of indices as the bits of a number."""
    return int.from_bytes(zlib.decompress(base64.b64decode(record[name])), "little")


def _sampler(record: Record) -> str:
    given = ", ".join(f"{name}={value}" for name, value in record["options"].items())
    return f"{record['sampler']}({given})"
