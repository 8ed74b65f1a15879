"""The algorithms of the collectives: who sends what to whom in which round.

Each takes this rank's tensor, flat or in N parts of about equal size, and a `Wire` to the others,
and works in place.

Sources: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
MPICH", 2005 (recursive doubling, folding of the odd ranks, binomial tree, scatter and all-gather);
Patarasuk, Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations", 2009
(ring); Bruck et al., "Efficient Algorithms for All-to-All Communications", 1997 (all-gather).
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from lab.parallel.wire import Wire, split_evenly


def naive_broadcast(flat: Tensor, root: int, wire: Wire) -> None:
    """The root sends to each."""
    if wire.rank == root:
        wire.exchange([(flat, rank) for rank in range(wire.size) if rank != root], [])
    else:
        wire.exchange([], [(flat, root)])


def ring_broadcast(flat: Tensor, root: int, wire: Wire) -> None:
    """The root scatters N parts and the ring gathers them."""
    parts = split_evenly(flat, wire.size)
    if wire.rank == root:
        wire.exchange([(parts[rank], rank) for rank in range(wire.size) if rank != root], [])
    else:
        wire.exchange([], [(parts[wire.rank], root)])
    ring_all_gather(parts, wire)


def tree_broadcast(flat: Tensor, root: int, wire: Wire) -> None:
    """In round k the 2^k ranks that have it send it to as many others."""
    me = (wire.rank - root) % wire.size  # as the root sees it, which is 0 itself
    distance = 1
    while distance < wire.size:
        if me < distance and me + distance < wire.size:
            wire.exchange([(flat, (me + distance + root) % wire.size)], [])
        elif distance <= me < 2 * distance:
            wire.exchange([], [(flat, (me - distance + root) % wire.size)])
        distance *= 2


def naive_all_gather(parts: Sequence[Tensor], wire: Wire) -> None:
    """Each sends its part to each."""
    others = [rank for rank in range(wire.size) if rank != wire.rank]
    wire.exchange(
        [(parts[wire.rank], rank) for rank in others], [(parts[rank], rank) for rank in others]
    )


def ring_all_gather(parts: Sequence[Tensor], wire: Wire) -> None:
    """Pass the parts around the ring: rank r has part r, and in each step sends on the last."""
    for step in range(wire.size - 1):
        wire.exchange(
            [(parts[(wire.rank - step) % wire.size], (wire.rank + 1) % wire.size)],
            [(parts[(wire.rank - 1 - step) % wire.size], (wire.rank - 1) % wire.size)],
        )


def bruck_all_gather(parts: Sequence[Tensor], wire: Wire) -> None:
    """Double the number of parts that each rank has in every round; any N.

    `have` holds parts r, r+1, ... in a row, so that each message is one piece of memory.
    """
    length = len(parts[0])
    have = parts[0].new_empty(wire.size * length)
    have[:length] = parts[wire.rank]
    count = 1
    while count < wire.size:
        more = min(count, wire.size - count)
        wire.exchange(
            [(have[: more * length], (wire.rank - count) % wire.size)],
            [(have[count * length : (count + more) * length], (wire.rank + count) % wire.size)],
        )
        count += more
    for place, row in enumerate(have.split(length) if length else []):
        parts[(wire.rank + place) % wire.size].copy_(row)


def naive_reduce_scatter(parts: Sequence[Tensor], wire: Wire) -> None:
    """Each part goes to its owner, who adds them in rank order."""
    mine = parts[wire.rank]
    others = [rank for rank in range(wire.size) if rank != wire.rank]
    theirs = {rank: torch.empty_like(mine) for rank in others}
    wire.exchange(
        [(parts[rank], rank) for rank in others], [(theirs[rank], rank) for rank in others]
    )
    theirs[wire.rank] = mine.clone()
    mine.copy_(theirs[0])
    for rank in range(1, wire.size):
        mine += theirs[rank]


def ring_reduce_scatter(parts: Sequence[Tensor], wire: Wire) -> None:
    """Pass partial sums around the ring until part r is complete on rank r.

    In step s rank r sends part r-1-s and adds what comes into part r-2-s: each part starts on the
    rank after its owner and visits all others before it gets home.
    """
    incoming = torch.empty_like(max(parts, key=len))
    for step in range(wire.size - 1):
        mine = parts[(wire.rank - 1 - step) % wire.size]
        next_one = parts[(wire.rank - 2 - step) % wire.size]
        received = incoming[: len(next_one)]
        wire.exchange(
            [(mine, (wire.rank + 1) % wire.size)], [(received, (wire.rank - 1) % wire.size)]
        )
        next_one += received


def naive_all_reduce(flat: Tensor, wire: Wire) -> None:
    """Rank 0 adds up what comes from one after another, and sends the sum to each."""
    if wire.rank == 0:
        theirs = torch.empty_like(flat)
        for other in range(1, wire.size):
            wire.exchange([], [(theirs, other)])
            flat += theirs
    else:
        wire.exchange([(flat, 0)], [])
    naive_broadcast(flat, 0, wire)


def ring_all_reduce(flat: Tensor, wire: Wire) -> None:
    """Reduce-scatter, then all-gather."""
    parts = split_evenly(flat, wire.size)
    ring_reduce_scatter(parts, wire)
    ring_all_gather(parts, wire)


def doubling_all_reduce(flat: Tensor, wire: Wire) -> None:
    """Swap sums with the rank at distance 1, 2, 4, ...

    N is seldom a power of two: the ranks above the largest one first give their tensor to a partner
    below, sit out, and get the sum at the end. a + b is bitwise b + a, so partners, and by
    induction all ranks, have the same bits.
    """
    power = 1 << (wire.size.bit_length() - 1)
    surplus = wire.size - power
    theirs = torch.empty_like(flat)
    if wire.rank >= power:
        wire.exchange([(flat, wire.rank - power)], [])
        wire.exchange([], [(flat, wire.rank - power)])
        return
    if wire.rank < surplus:
        wire.exchange([], [(theirs, wire.rank + power)])
        flat += theirs
    distance = 1
    while distance < power:
        partner = wire.rank ^ distance
        wire.exchange([(flat, partner)], [(theirs, partner)])
        flat += theirs
        distance *= 2
    if wire.rank < surplus:
        wire.exchange([(flat, wire.rank + power)], [])
