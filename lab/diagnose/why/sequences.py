"""Where the ranks' lists of collectives come apart.

All members of a process group must call the same collectives in the same order. Each call has a
number, so the first number at which the lists differ is where something went wrong; what follows,
here and in earlier rounds of the same loop, tells whether a call was left out, added, or another.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from lab.diagnose.why.branches import Way, way_of
from lab.diagnose.why.evidence import Collective, Evidence, Frame, GroupKey, Place

LONGEST_SHIFT = 3
"""How many collectives in a row may have been left out, or added, and still be recognised."""
SAME_SHAPES = frozenset({"all_reduce", "broadcast", "reduce", "all_gather", "barrier"})
"""Operations whose tensor has the same shape on all ranks; of others, roots have other tensors."""
ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""Operations that the root often calls from a line of its own, and all ranks in turn."""

Difference = Literal["skipped-collective", "extra-collective", "mismatched-collective"]
Calls = Mapping[int, Collective]
Places = tuple[Place, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Divergence:
    """The first number at which ranks of a group differ."""

    kind: Difference
    group: GroupKey
    seq: int
    ranks: tuple[int, ...]
    """Those on the wrong side."""
    called: Collective
    """What the first of them called."""
    others: tuple[int, ...]
    expected: Collective
    """What the others called."""
    certain: bool
    """Which side is the wrong one. Not so where both are equally many, and no habit tells."""
    count: int = 1
    """How many calls were left out or added."""
    is_open: bool = False
    """Of a call too many: it may as well have come too early, for want of what others call."""


def first_divergence(evidence: Evidence) -> Divergence | None:
    """The earliest one of all groups, by the time at which it was called."""
    found = [one for group in evidence.groups if (one := _in_group(evidence, group)) is not None]
    return min(found, key=lambda one: one.called.time or 0.0, default=None)


def _in_group(evidence: Evidence, group: GroupKey) -> Divergence | None:
    lists = {
        number: rank.called[group]
        for number, rank in evidence.ranks.items()
        if rank.called.get(group)
    }
    for seq in sorted({seq for calls in lists.values() for seq in calls}):
        sides = _sides({rank: calls[seq] for rank, calls in lists.items() if seq in calls})
        sides = _without_branches(lists, sides, seq)
        if len(sides) < 2:
            continue
        found = _judge(lists, sides, seq)
        if found is not None:
            return found
    return None


def _sides(calls: Mapping[int, Collective]) -> list[list[int]]:
    """The ranks that called the same from the same line, the most first."""
    sides: list[list[int]] = []
    for rank, call in calls.items():
        for side in sides:
            if _same(calls[side[0]], call) and call.is_recorded:
                side.append(rank)
                break
        else:
            sides.append([rank])
    return sorted(sides, key=lambda side: (-len(side), side))


def _without_branches(
    lists: Mapping[int, Calls], sides: Sequence[list[int]], seq: int
) -> list[list[int]]:
    """The same with those joined to the first that only take another line to the same call."""
    first, others = sides[0], []
    for side in sides[1:]:
        one, other = lists[first[0]], lists[side[0]]
        if _same_tensors(one[seq], other[seq]) and not (
            _come_apart(one, other, seq) or _were_shared(lists, one[seq], other[seq])
        ):
            first = [*first, *side]
        else:
            others.append(side)
    return [first, *others]


def _judge(lists: Mapping[int, Calls], sides: Sequence[list[int]], seq: int) -> Divergence | None:
    """What differs at this number; None where it is only the line, and nothing tells why."""
    right, wrong = _order(lists, sides, seq)
    ours, theirs = lists[right[0]], lists[wrong[0]]
    kind, count = _difference(ours, theirs, seq)
    is_open = kind is None and not _same_tensors(ours[seq], theirs[seq])
    if is_open:
        kind, count, is_open = _by_novelty(ours, theirs, seq)
    if kind is None:
        return None
    certain = len(right) > len(wrong) or _follows_habit(ours, seq) != _follows_habit(theirs, seq)
    return Divergence(
        kind if certain else "mismatched-collective",
        ours[seq].group,
        seq,
        tuple(sorted(rank for side in sides if side is not right for rank in side)),
        theirs[seq],
        tuple(right),
        ours[seq],
        certain,
        count,
        is_open,
    )


def _order(
    lists: Mapping[int, Calls], sides: Sequence[list[int]], seq: int
) -> tuple[list[int], list[int]]:
    """The side that is right and one that is not: the majority is, else who goes on as before."""
    first, second = sides[0], sides[1]
    if len(first) == len(second) and _follows_habit(lists[second[0]], seq):
        return (first, second) if _follows_habit(lists[first[0]], seq) else (second, first)
    return first, second


def _follows_habit(calls: Calls, seq: int) -> bool:
    """Whether this call came in earlier rounds of a loop, too."""
    return any(_same(calls[earlier + 1], calls[seq]) for earlier in rounds(calls, seq, _same))


def rounds(calls: Mapping[int, T], seq: int, same: Callable[[T, T], bool]) -> list[int]:
    """Where in earlier rounds of a loop the calls were most like those before this one.

    Args:
        calls: by number; numbers follow each other.
        seq: the number of this one.
        same: whether two are the same call.
    """
    alike = {
        earlier: _alike(calls, earlier, seq - 1, same)
        for earlier in calls
        if earlier < seq - 1 and earlier + 1 in calls
    }
    most = max(alike.values(), default=0)
    return [earlier for earlier, length in alike.items() if length == most > 0]


def _alike(calls: Mapping[int, T], earlier: int, later: int, same: Callable[[T, T], bool]) -> int:
    """How many calls up to one number are as those up to another."""
    length = 0
    while (
        earlier - length in calls
        and later - length in calls
        and same(calls[earlier - length], calls[later - length])
    ):
        length += 1
    return length


def _difference(ours: Calls, theirs: Calls, seq: int) -> tuple[Difference | None, int]:
    """What makes their call another than ours, and how many calls that is about."""
    for count in range(1, LONGEST_SHIFT + 1):
        if _is_moved(theirs, ours, seq, count):
            return "skipped-collective", count
    count = _distance(ours, seq, theirs[seq])
    if count:  # their loop has come round, and left out what was between
        return "skipped-collective", count
    for count in range(1, LONGEST_SHIFT + 1):
        if _is_moved(ours, theirs, seq, count):
            return "extra-collective", count
    count = _distance(theirs, seq, ours[seq])
    if count:  # our loop has come round before theirs
        return "extra-collective", count
    return None, 0


def _come_apart(ours: Calls, theirs: Calls, seq: int) -> bool:
    """Whether most of what follows differs as well.

    Else both are branches of the script with the same call in them: one for rank 0, say.
    """
    if ours[seq].op in ROOTED and _are_common(ours, theirs, seq):
        return False
    following = [_same(ours[n], call) for n, call in theirs.items() if n > seq and n in ours]
    return 2 * sum(following) < len(following)


def _are_common(ours: Calls, theirs: Calls, seq: int) -> bool:
    """Whether either side has called from both lines: in turn, perhaps."""
    here = {place(ours[seq]), place(theirs[seq])}
    return all(here <= {place(one) for one in calls.values()} for calls in (ours, theirs))


def _were_shared(lists: Mapping[int, Calls], one: Collective, other: Collective) -> bool:
    """Whether all ranks have met at either line before, and do not all meet in what follows.

    Then one of them is at the wrong line, and others' calls have taken the place of what it missed.
    """
    first, *rest = lists.values()
    later = {n for calls in lists.values() for n in calls if n > one.seq}
    if all(
        n in first and n in calls and _same_tensors(first[n], calls[n])
        for n in later
        for calls in rest
    ):
        return False
    met = {
        place(call)
        for n, call in first.items()
        if n < one.seq and all(n in calls and _same(calls[n], call) for calls in rest)
    }
    return {place(one), place(other)} <= met


def _is_moved(short: Calls, long: Calls, seq: int, count: int) -> bool:
    """Whether from here on one list is the other without the next `count` of its calls."""
    pairs = [(long[n + count], call) for n, call in short.items() if n >= seq and n + count in long]
    return bool(pairs) and all(_same(one, other) for one, other in pairs)


def _is_known(calls: Calls, call: Collective, seq: int) -> bool:
    return any(_same(earlier, call) for n, earlier in calls.items() if n < seq)


def _distance(calls: Calls, seq: int, other: Collective) -> int:
    """How many calls later than this one the other came in the round before; 0: it did not."""
    before = [earlier + 1 for earlier in rounds(calls, seq, _same)]
    # Else, in the second round of a loop, where this call was the first time.
    before = before or [n for n, call in calls.items() if n < seq and _same(call, calls[seq])]
    if not before:
        return 0
    now = max(before)
    return next((n - now for n in range(now, seq) if _same(calls[n], other)), 0)


def _by_novelty(ours: Calls, theirs: Calls, seq: int) -> tuple[Difference, int, bool]:
    """Nothing but this one call tells: is it new to one side, and the other's known?

    A new one may come after the loop, of which that side has done fewer rounds: if we come there
    later it does; if they come to ours later, they are still in it.
    """
    if theirs[seq].site is None or place(theirs[seq]) == place(ours[seq]):
        return "mismatched-collective", 1, False
    usual, new = _is_known(ours, ours[seq], seq), not _is_known(theirs, theirs[seq], seq)
    if not usual and not new:
        return "skipped-collective", 1, False
    way = way_of(theirs[seq], ours[seq])
    if not new or way is Way.INSTEAD or not (usual or way is Way.ASIDE):
        return "mismatched-collective", 1, False
    met = next((n for n, call in ours.items() if n > seq and _same(call, theirs[seq])), None)
    if met is not None or way is Way.AFTER:
        return "skipped-collective", 1 if met is None else met - seq, False
    goes_on = any(_same(call, ours[seq]) for n, call in theirs.items() if n > seq)
    return "extra-collective", 1, way is not Way.ASIDE and not goes_on


def place_of(site: Frame | None) -> Place | None:
    """File and line alone: a function may be called by several names."""
    return None if site is None else (site.file, site.line)


def place(call: Collective) -> Places | None:
    """From where it was called: its line, and the callers of that where it has several."""
    if call.site is None:
        return None
    return tuple((frame.file, frame.line) for frame in (call.site, *call.callers))


def _same(one: Collective, other: Collective) -> bool:
    """The same call, from the same line."""
    if not (one.is_recorded and other.is_recorded):
        return one.op == other.op and place_of(one.site) == place_of(other.site) is not None
    return _same_tensors(one, other) and place(one) == place(other)


def _same_tensors(one: Collective, other: Collective) -> bool:
    """Whether two ranks may meet in these: same operation, and tensors that go together."""
    if one.op != other.op or not (one.is_recorded and other.is_recorded):
        return False
    if not one.dtypes or not other.dtypes:  # of scatter and gather only the root has any
        return True
    return one.dtypes == other.dtypes and (one.op not in SAME_SHAPES or one.shapes == other.shapes)
