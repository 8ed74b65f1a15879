"""Node sets: `node[0-3]`, `gpu[01-16],big1`, as names in order, counted before they are expanded.

ClusterShell reads the sets. It would also set out to build one of 10^9 nodes, so the size of a set
is found by arithmetic first, and a set that is too large is refused.
"""

import re
from math import prod

MAX_NODES = 100_000
"""Nodes a topology may have."""

RULE = "must be a node set such as node[0-3] or gpu[01-16],big1"

_SEPARATOR = re.compile(r"[,!&^](?![^\[]*\])")  # outside brackets
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+)(?:/([0-9]+))?)?")
_ONE_RANGE = re.compile(r"([A-Za-z0-9.-]*)\[([0-9]{1,9})-([0-9]{1,9})\]([A-Za-z0-9.-]*)")


def expand_names(text: str) -> list[str]:
    """The names in a node set, in the order they are written in.

    Besides `,` ClusterShell's other operators work: `node[0-15]!node3` leaves one out. Where it
    sorts by name, here the order says which node is the first, so parts stay in the order given
    (inside brackets numbers ascend).

    Args:
        text: the node set.

    Raises:
        ValueError: the set does not parse, is empty, repeats a node or is too large; the message
            says what is allowed.
    """
    # Imported late: it reads configuration files, and `lab --help` has no use for it.
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    parts = [part.strip() for part in _SEPARATOR.split(text)]
    total = sum(count_names(part) for part in parts)
    if total > MAX_NODES:
        amount = f"{total:,}" if total < 10**15 else "more than 10^15"
        raise ValueError(f"must be at most {MAX_NODES:,} nodes, and this is {amount}")
    try:
        written = [str(name) for part in parts for name in NodeSet(part, resolver=RESOLVER_NOGROUP)]
        if not re.search(r"[!&^]", text):
            if len(set(written)) < total:
                raise ValueError(
                    f"must name each node once, and '{_repeated(written)}' comes again"
                )
            return written
        wanted = set(NodeSet(text, resolver=RESOLVER_NOGROUP))
    except NodeSetException as error:
        raise ValueError(f"{RULE} ({error})") from None
    if not wanted:
        raise ValueError("must leave at least one node")
    return [name for name in dict.fromkeys(written) if name in wanted]


def count_names(part: str) -> int:
    """How many names one part of a node set stands for, by arithmetic alone.

    Args:
        part: a node set without operators: `rack[1-4]-node[01-16]`.

    Raises:
        ValueError: the part does not parse.
    """
    rest = _BRACKETS.sub("", part)
    if not part:
        raise ValueError(f"{RULE} (a name is missing)")
    if "[" in rest or "]" in rest:
        raise ValueError(f"{RULE} (a bracket is missing or one too many)")
    if " " in rest or "\t" in rest:
        raise ValueError(f"{RULE}, with commas between the names")
    if "@" in rest or "*" in rest or "?" in rest:
        raise ValueError(f"{RULE} (groups and wildcards are not known here)")
    return prod(
        sum(_count_range(piece.strip()) for piece in inner.split(","))
        for inner in _BRACKETS.findall(part)
    )


def _count_range(piece: str) -> int:
    found = _RANGE.fullmatch(piece)
    if found is None:
        raise ValueError(f"{RULE} ('{piece[:40]}' is no number and no range of numbers)")
    first, last, step = found[1], found[2] or found[1], found[3] or "1"
    if max(len(first), len(last), len(step)) > 18:
        raise ValueError(f"{RULE} (numbers have at most 18 digits)")
    if int(step) == 0 or int(last) < int(first):
        raise ValueError(f"{RULE} ('{piece}' is an empty range)")
    return (int(last) - int(first)) // int(step) + 1


def _repeated(names: list[str]) -> str:
    """The first name that comes a second time, or the first where brackets hide it: [1,1]."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return names[0]


def continue_set(text: str, count: int) -> str | None:
    """A set of one range with as many nodes as asked for: `node[0-3]` and 8 give `node[0-7]`.

    Returns:
        The node set, or None where the set is not one range and nothing says how it goes on.
    """
    found = _ONE_RANGE.fullmatch(text.strip())
    if found is None:
        return None
    head, first, _, tail = found.groups()
    last = str(int(first) + count - 1).zfill(len(first))
    # ClusterShell wants both ends of a padded range equally long.
    first = first.zfill(len(last)) if first.startswith("0") and len(first) > 1 else first
    return f"{head}[{first}-{last}]{tail}"
