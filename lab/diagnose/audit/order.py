"""Whether the ranks have the same parameters, but in other orders, and gradients go by position."""

from collections.abc import Mapping, Sequence

from lab.diagnose.audit.layouts import Layout, minority, unpacked
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
            found.append(_say(count, {rank: layouts[rank] for rank in ranks}))
    return found


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


def _say(count: int, layouts: Mapping[int, Layout]) -> Finding:
    orders = {rank: layout.order for rank, layout in layouts.items()}
    ranks = minority(orders)
    place = next(
        n for n, names in enumerate(zip(*orders.values(), strict=True)) if len({*names}) > 1
    )
    named: dict[str, list[int]] = {}
    for rank, order in orders.items():
        named.setdefault(order[place], []).append(rank)
    told = [f"{name} on {ranks_in_words(each)}" for name, each in list(named.items())[:8]]
    one = layouts[ranks[-1]]
    site = one.built[one.names.index(one.order[place])]
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
        step=count,
        **(site or NOWHERE),
        evidence=(
            "gradients are put together by position: those of one position are equal on all ranks, "
            "those of one name are not, so that parameters get each other's",
        ),
        cure="build the modules in the same order on every rank: go through sorted(names), not "
        "through a set, whose order of strings is another in each process",
    )
