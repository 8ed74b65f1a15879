"""Whether the ranks have the same parameters, but in other orders, and gradients go by position."""

from collections.abc import Mapping, Sequence
from typing import Any

from lab.diagnose.audit.layouts import Layout, minority, sites_of, unpacked
from lab.diagnose.audit.records import Record
from lab.diagnose.finding import Finding
from lab.diagnose.words import ranks_in_words

NOWHERE = {"file": None, "line": None, "function": None}


def judge_order(
    count: int, layouts: Mapping[int, Layout], records: Mapping[int, Record]
) -> list[Finding]:
    """What the gradients of ranks that hold the same parameters show.

    They are told by their digests: those that are put together are equal, bit by bit.

    Args:
        count: the optimizer's step.
        layouts: by rank.
        records: of the same ranks at that step.
    """
    if len({layout.order for layout in layouts.values()}) == 1:
        return []
    alike: dict[object, list[int]] = {}
    for rank, layout in sorted(layouts.items()):
        if layout.together and not any(layout.parts):
            same = frozenset(zip(layout.names, layout.shapes, strict=True)), layout.group
            alike.setdefault(same, []).append(rank)
    found = []
    for ranks in alike.values():
        orders = {rank: layouts[rank].order for rank in ranks}
        if len(set(orders.values())) > 1 and _by_position(
            {rank: _gradients(layouts[rank], records[rank]) for rank in ranks}, orders
        ):
            sites = {
                rank: dict(zip(layouts[rank].names, layouts[rank].built, strict=True))
                for rank in ranks
            }
            found.append(_say(orders, sites, count))
    return found


class Wrapped:
    """Compares what ranks of one group have given to DDP."""

    def __init__(self) -> None:
        self._records: dict[object, dict[int, Record]] = {}

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """Take a record of a rank."""
        group = tuple(record["group"])
        records = self._records.setdefault((record["number"], group), {})
        records[rank] = record
        if len(records) < len(group):
            return []
        orders = {rank: tuple(one["names"]) for rank, one in sorted(records.items())}
        if len(set(orders.values())) == 1 or len({frozenset(one) for one in orders.values()}) > 1:
            return []  # other parameters altogether: it is DDP that says so
        sites = {
            rank: dict(zip(one["names"], sites_of(one), strict=True))
            for rank, one in records.items()
        }
        return [_say(orders, sites)]


def _gradients(layout: Layout, record: Record) -> dict[str, int]:
    return dict(zip(layout.names, unpacked("I", record["gradients"]), strict=True))


def _by_position(
    gradients: Mapping[int, Mapping[str, int]], orders: Mapping[int, Sequence[str]]
) -> bool:
    """Whether gradients of the same position are equal, and those of the same name are not."""
    first, *others = gradients.values()
    if all(other == first for other in others):
        return False
    return len({tuple(gradients[r][name] for name in orders[r]) for r in gradients}) == 1


def _say(
    orders: Mapping[int, Sequence[str]],
    sites: Mapping[int, Mapping[str, dict[str, Any] | None]],
    step: int | None = None,
) -> Finding:
    """`sites`: by rank and name, where each was made; `step`: at which gradients have shown it."""
    ranks = minority(orders)
    place = next(
        n for n, names in enumerate(zip(*orders.values(), strict=True)) if len({*names}) > 1
    )
    named: dict[str, list[int]] = {}
    for rank, order in orders.items():
        named.setdefault(order[place], []).append(rank)
    told = [f"{name} on {ranks_in_words(each)}" for name, each in list(named.items())[:8]]
    site = sites[ranks[-1]][orders[ranks[-1]][place]]
    verb = "has" if len(ranks) == 1 else "have"
    how = "another order than the others"
    if len(ranks) == len(orders):
        how = "orders of their own"
    return Finding(
        "parameter-order-differs",
        "error",
        f"{ranks_in_words(ranks)} {verb} the model's parameters in {how}: the first "
        f"that differs is number {place + 1}, {', '.join(told)}",
        ranks=ranks,
        step=step,
        **(site or NOWHERE),
        evidence=(
            "DistributedDataParallel puts parameters together by position, whatever their names"
            if step is None
            else "gradients are put together by position: those of one position are equal on all "
            "ranks, those of one name are not, so that parameters get each other's",
        ),
        cure="build the modules in the same order on every rank: go through sorted(names), not "
        "through a set, whose order of strings is another in each process",
    )
