"""The parameters of each optimizer, as the ranks have noted them."""

import base64
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.diagnose.audit.records import Record


@dataclass(frozen=True)
class Layout:
    """The parameters of one optimizer on one rank. Lists are in the optimizer's order."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    parts: tuple[bool, ...]
    """Of which the rank holds a part, and others the rest."""
    managed: tuple[bool, ...]
    """Whose gradients a wrapper reduces."""
    group: tuple[int, ...] | None
    """The ranks of DDP's group; None: no DDP."""
    sampler: bool
    """Whether the script has a DistributedSampler."""
    order: tuple[str, ...]
    """The names in the order of the models, by which wrappers reduce."""
    built: tuple[dict[str, Any] | None, ...]
    """Where each was made: `file`, `line`, `function`."""
    together: bool
    """Whether the ranks are in a process group."""

    @property
    def whole(self) -> list[int]:
        """Places of those that every rank should have the same of."""
        return [place for place, part in enumerate(self.parts) if not part]


class Layouts:
    """Of all optimizers, by number, and ranks."""

    def __init__(self) -> None:
        self._all: dict[int, dict[int, Layout]] = {}
        self.made: dict[tuple[int, int], dict[str, Any]] = {}
        """Where the model was made: `file`, `line`, `function`, by optimizer and rank."""

    def feed(self, rank: int, record: Record) -> None:
        """Take a record of the check `layout`."""
        group = record["group"]
        layout = Layout(
            names=tuple(record["names"]),
            shapes=tuple(tuple(shape) for shape in record["shapes"]),
            parts=tuple(record["parts"]),
            managed=tuple(record["managed"]),
            group=None if group is None else tuple(group),
            sampler=record["sampler"],
            order=tuple(record["order"] or record["names"]),
            built=sites_of(record),
            together=record["together"],
        )
        self._all.setdefault(record["optimizer"], {})[rank] = layout
        if record["made"] is not None:
            self.made[record["optimizer"], rank] = record["made"]

    def of(self, optimizer: int, rank: int) -> Layout | None:
        """One of them."""
        return self._all.get(optimizer, {}).get(rank)

    def replicas(self, optimizer: int) -> list[tuple[int, ...]]:
        """The ranks in sets that train the same: equal names and shapes, one group of DDP."""
        alike: dict[object, list[int]] = {}
        for rank, layout in self._all.get(optimizer, {}).items():
            if layout.together:
                same = layout.names, layout.shapes, layout.parts, layout.group
                alike.setdefault(same, []).append(rank)
        return [tuple(sorted(those)) for those in alike.values() if len(those) > 1]


def sites_of(record: Record) -> tuple[dict[str, Any] | None, ...]:
    """Where each of the parameters that a record is about was made."""
    return tuple(record["sites"][number] for number in record["built"])


def unpacked(code: str, text: str) -> tuple[Any, ...]:
    """What `lab.rank.audit.tensors.packed` made a text of."""
    data = base64.b64decode(text)
    return struct.unpack(f"<{len(data) // 4}{code}", data)


def minority(values: Mapping[int, object]) -> tuple[int, ...]:
    """The ranks whose value is not that of most; all of them where no value is that of most."""
    (most, count), *_ = Counter(values.values()).most_common(1)
    if count * 2 <= len(values):
        return tuple(sorted(values))
    return tuple(sorted(rank for rank, value in values.items() if value != most))


def listed(names: Sequence[str]) -> str:
    """`layer.weight`, or `layer.weight and 3 others`."""
    others = len(names) - 1
    return names[0] + (f" and {others} other{'s' * (others > 1)}" if others else "")
