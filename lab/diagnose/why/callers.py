"""Which callers of a line tell its calls apart.

One line of a helper (`mean()` of a metric) may be called for many: then the lines that called it
say which call this was. Where it is always called from the same, they say nothing.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from lab.diagnose.why.evidence import Collective, Frame, Rank


def with_telling_callers(ranks: Mapping[int, Rank]) -> dict[int, Rank]:
    """The ranks with those callers of their collectives alone that tell calls of a line apart."""
    branches = _branches(ranks)
    chains: dict[Frame | None, set[tuple[Frame, ...]]] = defaultdict(set)
    for rank in ranks.values():
        for call in rank.collectives:
            chains[call.site].add(_without(branches, call))
    common = {site: _common_end(found) for site, found in chains.items()}
    return {number: _trimmed(rank, branches, common) for number, rank in ranks.items()}


def _trimmed(rank: Rank, branches: set[Frame], common: Mapping[Frame | None, int]) -> Rank:
    told = []
    for call in rank.collectives:
        chain = _without(branches, call)
        told.append(replace(call, callers=chain[: len(chain) - common[call.site]]))
    return replace(rank, collectives=tuple(told))


def _without(branches: set[Frame], call: Collective) -> tuple[Frame, ...]:
    return tuple(one for one in call.stack if one not in branches)


def _branches(ranks: Mapping[int, Rank]) -> set[Frame]:
    """Lines that take the place of each other: `train(log=True)` of rank 0, `train()` of the rest.

    Each rank that was never at the one was at another of the same function, where nobody else was.
    """
    passed = {
        number: {frame for call in rank.collectives for frame in call.stack}
        for number, rank in ranks.items()
        if rank.collectives
    }
    found = set()
    for frame in {frame for frames in passed.values() for frame in frames}:
        there = [frames for frames in passed.values() if frame in frames]
        absent = [frames for frames in passed.values() if frame not in frames]
        taken = {one for frames in there for one in frames}
        if absent and all(
            any(_in_one_function(one, frame) for one in frames - taken) for frames in absent
        ):
            found.add(frame)
    return found


def _in_one_function(one: Frame, other: Frame) -> bool:
    return (one.file, one.function) == (other.file, other.function)


def _common_end(chains: set[tuple[Frame, ...]]) -> int:
    """How many of the outermost are the same in all."""
    length = 0
    while (
        all(len(chain) > length for chain in chains)
        and len({chain[-1 - length] for chain in chains}) == 1
    ):
        length += 1
    return length
