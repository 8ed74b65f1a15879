"""How many bytes gloo sends in one message of a collective.

A rank that gloo aborts leaves no list of its collectives, but gloo says how many bytes came. It
matches the messages of a group's collectives by the number of the call: so that who has sent so
many tells which call it was. The formulas are those of gloo (ring all-reduce and all-gather,
broadcast by a tree).
"""

import re
from math import prod

from lab.diagnose.why.evidence import Collective

SEGMENT = 1 << 20
"""The most that its all-reduce sends at once."""
GATHERS = frozenset({"all_gather", "_allgather_base"})
FINISHED_TOGETHER = frozenset({"all_reduce", "_reduce_scatter_base", "reduce_scatter"})
"""No rank has come to their end before each has had all that is too large for it."""
MET = FINISHED_TOGETHER | GATHERS | {"barrier"}
"""No rank has come to their end before each has begun."""


def sent(call: Collective) -> frozenset[int] | None:
    """How long its messages are, of which those of a tree or ring are few; None: not known here."""
    if call.op == "barrier":
        return frozenset({0})
    if len(call.shapes) != 1 or len(call.dtypes) != 1:
        return None
    element = _element(call.dtypes[0])
    size = prod(call.shapes[0]) * element
    if call.op == "broadcast":
        return frozenset({size})
    if call.op in GATHERS:  # two halves
        return frozenset({size // 2, size - size // 2})
    if call.op == "all_reduce":
        ranks = len(call.group[1])
        segments = _up(max(_up(size, SEGMENT) // SEGMENT, 2 * ranks), ranks)
        segment = _up(-(-size // segments), element)
        return frozenset({segment, size % segment or segment}) if segment else frozenset({0})
    return None


def _element(dtype: str) -> int:
    bits = re.search(r"\d+", dtype)
    return int(bits[0]) // 8 if bits else 1


def _up(number: int, step: int) -> int:
    """The next multiple."""
    return -(-number // step) * step
