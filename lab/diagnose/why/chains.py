"""Where chains of waiting end, or that they do not."""

from collections.abc import Mapping

from lab.diagnose.why.waits import Wait


def roots(waits: Mapping[int, Wait]) -> tuple[int, ...]:
    """The ranks that others wait for, while they wait for nobody."""
    awaited = {rank for wait in waits.values() for rank in wait.awaited}
    return tuple(sorted(rank for rank in awaited if rank not in waits))


def circle(waits: Mapping[int, Wait]) -> tuple[int, ...]:
    """The ranks of the shortest circle, in the order of their waiting; empty if there is none.

    In a longer one there are some who only wait for it. Who waits for any of several is no part of
    it where there is a circle of others. It begins with one who waits for a message, which is at
    the line to look at.
    """
    certain = {n: one for n, one in waits.items() if one.lane is None or len(one.awaited) == 1}
    for among in (certain, waits):
        found = [one for start in sorted(among) if (one := _back_to(start, among))]
        if found:
            order = min(found, key=len)
            begin = next((n for n, rank in enumerate(order) if waits[rank].tags), 0)
            return (*order[begin:], *order[:begin])
    return ()


def _back_to(start: int, waits: Mapping[int, Wait]) -> tuple[int, ...]:
    """The shortest way along which a rank waits for itself."""
    paths: list[tuple[int, ...]] = [(start,)]
    seen = {start}
    for path in paths:  # it grows meanwhile
        for after in sorted(waits[path[-1]].awaited):
            if after == start:
                return path
            if after in waits and after not in seen:
                seen.add(after)
                paths.append((*path, after))
    return ()
