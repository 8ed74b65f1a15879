"""How the source goes from one call to the other, where lists of collectives come apart.

The lists alone do not tell a call that only some ranks make from one that they came to too early.
"""

from enum import Enum, auto

from lab.diagnose.why.evidence import Collective, Frame


class Way(Enum):
    """How a call that some have made is to that of the others."""

    ASIDE = auto()
    """It is in a condition, after which the others' call comes."""
    AFTER = auto()
    """It comes after a loop that the others' call is in, and in no condition."""
    INSTEAD = auto()
    """They are branches of one condition."""
    UNKNOWN = auto()


def way_of(called: Collective, expected: Collective) -> Way:
    """Compare the lines of the innermost function that both have gone through."""
    ours, theirs = _apart(called), _apart(expected)
    while len(ours) > 1 and len(theirs) > 1 and ours[-1] == theirs[-1]:
        ours, theirs = ours[:-1], theirs[:-1]
    here, there = (ours[-1], theirs[-1]) if ours and theirs else (None, None)
    if here is None or there is None or here.line is None or there.line is None:
        return Way.UNKNOWN
    if (here.file, here.function) != (there.file, there.function):
        return Way.UNKNOWN
    if any(one.blocks is None for one in (*ours, *theirs)):
        return Way.UNKNOWN
    mine, other = set(here.blocks or ()), set(there.blocks or ())
    if {block[:2] for block in mine - other} & {block[:2] for block in other - mine}:
        return Way.INSTEAD
    inner = [block for frame in ours[:-1] for block in frame.blocks or ()]
    is_aside = any(kind == "condition" for kind, *_ in (*inner, *(mine - other)))
    within = [block for frame in theirs[:-1] for block in frame.blocks or ()]
    leaves_loop = any(kind == "loop" for kind, *_ in (*within, *(other - mine)))
    if here.line > there.line and leaves_loop and not is_aside:
        return Way.AFTER
    if here.line < there.line and is_aside:
        return Way.ASIDE
    return Way.UNKNOWN


def _apart(call: Collective) -> tuple[Frame, ...]:
    return () if call.site is None else (call.site, *call.stack)
