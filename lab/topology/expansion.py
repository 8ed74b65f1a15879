"""The value of `nodes` (a node set, a count or a list) as one list of nodes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import BaseModel

from lab.topology.nodeset import MAX_NODES, expand_names

_COUNT = re.compile(r"[+-]?[0-9]+")
_COUNT_RANGE = re.compile(r"([0-9]{1,18})-([0-9]{1,18})")

NODES_RULE = (
    "must be a node set such as node[0-3], a count, or a list of names and of mappings "
    "with the keys name, address, slots, interface, cpus, memory"
)
ENTRY_RULE = (
    "must be a name, a node set or a mapping with the keys name, address, slots, interface, "
    "cpus, memory"
)


class NodeProblem(NamedTuple):
    """Something wrong with a topology: where in the input, what stands there, what may."""

    loc: tuple[int | str, ...]
    found: Any
    allowed: str


@dataclass
class Expansion:
    """The nodes one by one, and where each comes from."""

    nodes: list[Any] = field(default_factory=list)
    """Mappings for the model Node."""
    origins: list[int | None] = field(default_factory=list)
    """For each node its entry in the list that was given; None where there was no list."""
    counted: bool = False
    """Whether it was a count, or a range of counts: the lab gave the nodes their names."""
    min_nodes: int | None = None
    """The smaller number of a range of counts."""
    problems: list[NodeProblem] = field(default_factory=list)
    """What could not be expanded."""

    def place(self, index: int, *field: int | str) -> tuple[int | str, ...]:
        """Where a node, or a field of it, stands in the input."""
        origin = self.origins[index] if index < len(self.origins) else None
        return ("nodes",) if origin is None else ("nodes", origin, *field)

    def refuse(self, loc: tuple[int | str, ...], found: Any, allowed: str) -> None:
        """Note a problem."""
        self.problems.append(NodeProblem(loc, found, allowed))


def expand_nodes(value: Any, *, slurm: bool) -> Expansion:
    """Expand the value of `nodes`; never raises, and never builds more than the maximum.

    Args:
        value: what the topology or `--nodes` says.
        slurm: whether a range of counts (`2-4`) is possible.
    """
    expansion = Expansion()
    if isinstance(value, str):
        value = value.strip()
    if isinstance(value, int) and not isinstance(value, bool):
        _expand_count(expansion, value, value)
    elif isinstance(value, str) and _COUNT.fullmatch(value):
        # int() of a very long number would raise; any number of 19 digits is too many nodes.
        _expand_count(expansion, value, int(value[:19]))
    elif isinstance(value, str) and (found := _COUNT_RANGE.fullmatch(value)):
        _expand_count_range(expansion, value, int(found[1]), int(found[2]), slurm)
    elif isinstance(value, str):
        _expand_set(expansion, value)
    elif isinstance(value, Sequence) and not isinstance(value, bytes):
        _expand_list(expansion, value)
    else:
        expansion.refuse(("nodes",), value, NODES_RULE)
    return expansion


def _expand_count(expansion: Expansion, value: Any, count: int) -> bool:
    if 1 <= count <= MAX_NODES:
        expansion.nodes = [{"name": f"node{index}"} for index in range(count)]
        expansion.origins = [None] * count
        expansion.counted = True
        return True
    allowed = "must be at least 1" if count < 1 else f"must be at most {MAX_NODES:,} nodes"
    expansion.refuse(("nodes",), value, allowed)
    return False


def _expand_count_range(
    expansion: Expansion, value: str, fewest: int, most: int, slurm: bool
) -> None:
    if not slurm:
        expansion.refuse(
            ("nodes",), value, "must be one number: only slurm takes a range of counts"
        )
    elif fewest < 1 or fewest > most:
        expansion.refuse(("nodes",), value, "must be fewest-most, such as 2-4")
    elif _expand_count(expansion, value, most):
        expansion.min_nodes = fewest


def _expand_set(expansion: Expansion, value: str) -> None:
    try:
        names = expand_names(value)
    except ValueError as error:
        expansion.refuse(("nodes",), value, str(error))
        return
    expansion.nodes = [{"name": name} for name in names]
    expansion.origins = [None] * len(names)


def _expand_list(expansion: Expansion, entries: Sequence[Any]) -> None:
    """A list may hold names, node sets and mappings; a mapping may name a set of equal nodes."""
    if not entries:
        expansion.refuse(("nodes",), entries, "must have at least one node")
    for index, entry in enumerate(entries):
        loc: tuple[int | str, ...] = ("nodes", index)
        details: dict[Any, Any] = {}
        name = entry
        if isinstance(entry, BaseModel):
            entry = dict(entry)
        if isinstance(entry, Mapping):
            # What is there and empty (`address:`) counts as left out, as YAML's users expect.
            details = {key: item for key, item in entry.items() if item is not None}
            name = details.pop("name", None)
            loc = (*loc, "name")
        elif not isinstance(entry, str):
            expansion.refuse(loc, entry, ENTRY_RULE)
            continue
        names = [name]
        if isinstance(name, str) and ("[" in name or "," in name or "]" in name):
            try:
                names = expand_names(name)
            except ValueError as error:
                expansion.refuse(loc, name, str(error))
                continue
        if len(expansion.nodes) + len(names) > MAX_NODES:
            expansion.refuse(("nodes",), entries, f"must be at most {MAX_NODES:,} nodes")
            return
        named = [{} if name is None else {"name": name} for name in names]
        expansion.nodes += [{**item, **details} for item in named]
        expansion.origins += [index] * len(names)
