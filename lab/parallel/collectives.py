"""Collectives from scratch: broadcast, all-gather, reduce-scatter, all-reduce by send and receive.

Three kinds of algorithm, for N ranks and a tensor of S bytes:

    algorithm   rounds of an all-reduce   bytes a rank sends            good for
    naive       2, one after another      rank 0: (N-1) S               reading
    ring        2 (N-1)                   2 (N-1)/N S, least there is   large tensors: bandwidth
    doubling    log2 N, rounded up        S log2 N                      small tensors: latency

Each call returns its `Traffic`: what this rank sent and received. Each message has a deadline, so a
peer that never comes is an error and not a hang. Any process group will do, and any dtype that can
be added; sums are taken in the tensor's own dtype. All ranks must call the same functions in the
same order with tensors of equal shape and dtype, and all get bitwise the same result.

Sources: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
MPICH", 2005 (recursive doubling, folding of the odd ranks, binomial tree, scatter and all-gather);
Patarasuk, Yuan, "Bandwidth Optimal All-reduce Algorithms for Clusters of Workstations", 2009
(ring); Bruck et al., "Efficient Algorithms for All-to-All Communications", 1997 (all-gather).
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from lab.parallel.wire import DEADLINE, Traffic, Wire, flat_view, parts_of, split_evenly

Algorithm = Literal["auto", "naive", "ring", "doubling"]
BroadcastAlgorithm = Literal["auto", "naive", "ring", "tree"]
ReduceScatterAlgorithm = Literal["auto", "naive", "ring"]

CROSSOVER_BYTES = 1024 * 1024
"""`auto` takes the ring from this size on, and fewer rounds below.

At N = 4 a ring saves S/2 of bytes and costs 4 rounds more. With 1 ms for a round (4 ranks that
share 2 cores) and 8 ns for a byte (1 Gbit/s) they break even at 1 MB. On loopback, where bytes are
nearly free, an all-reduce by doubling took 4.4 ms against 14 ms at 64 KiB, 7 against 20 at 1 MiB
and 16 against 20 at 4 MiB, with torch's own gloo at 8, 9 and 15 ms.
"""


def broadcast(
    tensor: Tensor,
    root: int = 0,
    group: dist.ProcessGroup | None = None,
    *,
    algorithm: BroadcastAlgorithm = "auto",
    deadline: timedelta = DEADLINE,
) -> Traffic:
    """Copy the root's tensor into that of every rank, in place.

    Args:
        tensor: any shape and dtype, contiguous; the same on every rank.
        root: the rank within the group whose tensor it is.
        group: default all ranks.
        algorithm: naive: the root sends to each. tree: whoever has it sends it on, log2 N rounds.
            ring: the root scatters N parts and the ring gathers them, so no rank sends more than
            2 (N-1)/N S. auto: ring or tree, by size.
        deadline: the longest wait for any one message.

    Raises:
        ValueError: the tensor is not contiguous, or there is no such algorithm.
        RuntimeError: a message missed the deadline, or its peer is gone: the group is unusable.
    """
    wire = Wire(group, deadline)
    flat = flat_view(tensor)
    # Ranks as the root sees them: the root itself is 0.
    me = (wire.rank - root) % wire.size
    if algorithm == "auto":
        algorithm = "ring" if flat.nbytes >= CROSSOVER_BYTES else "tree"
    if algorithm == "naive":
        if me == 0:
            for other in range(1, wire.size):
                wire.exchange([(flat, (other + root) % wire.size)], [])
        else:
            wire.exchange([], [(flat, root)])
    elif algorithm == "tree":
        distance = 1
        while distance < wire.size:
            if me < distance and me + distance < wire.size:
                wire.exchange([(flat, (me + distance + root) % wire.size)], [])
            elif distance <= me < 2 * distance:
                wire.exchange([], [(flat, (me - distance + root) % wire.size)])
            distance *= 2
    elif algorithm == "ring":
        parts = split_evenly(flat, wire.size)
        if wire.rank == root:
            others = [rank for rank in range(wire.size) if rank != root]
            wire.exchange([(parts[rank], rank) for rank in others], [])
        else:
            wire.exchange([], [(parts[wire.rank], root)])
        _ring_all_gather(parts, wire)
    else:
        raise _no_such(algorithm, BroadcastAlgorithm)
    return wire.traffic


def all_gather(
    output: Tensor,
    part: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    algorithm: Algorithm = "auto",
    deadline: timedelta = DEADLINE,
) -> Traffic:
    """Concatenate the ranks' parts, in rank order, on every rank.

    Args:
        output: as many elements as all parts together, contiguous; overwritten. `part` may be this
            rank's place in it.
        part: any shape, contiguous; the same shape and dtype on every rank.
        group: default all ranks.
        algorithm: naive: each sends its part to each, N-1 messages at once. ring: N-1 rounds, each
            passing on what came last. doubling: Bruck's, log2 N rounds, any N. All send N-1 parts.
        deadline: the longest wait for any one message.

    Raises:
        ValueError: sizes or dtypes do not fit, or a tensor is not contiguous.
        RuntimeError: as `broadcast`.
    """
    wire = Wire(group, deadline)
    parts = parts_of(output, part, wire.size)
    parts[wire.rank].copy_(flat_view(part))
    if algorithm == "auto":
        algorithm = "ring" if output.nbytes >= CROSSOVER_BYTES else "doubling"
    if algorithm == "naive":
        others = [rank for rank in range(wire.size) if rank != wire.rank]
        wire.exchange(
            [(parts[wire.rank], rank) for rank in others], [(parts[rank], rank) for rank in others]
        )
    elif algorithm == "ring":
        _ring_all_gather(parts, wire)
    elif algorithm == "doubling":
        _bruck_all_gather(parts, wire)
    else:
        raise _no_such(algorithm, Algorithm)
    return wire.traffic


def reduce_scatter(
    output: Tensor,
    tensor: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    algorithm: ReduceScatterAlgorithm = "auto",
    deadline: timedelta = DEADLINE,
) -> Traffic:
    """Sum the ranks' tensors; each rank keeps the part of its own number.

    Args:
        output: one N-th of `tensor`'s elements, contiguous; overwritten.
        tensor: any shape, contiguous; the same shape and dtype on every rank. Left as it is.
        group: default all ranks.
        algorithm: naive: each part goes straight to its owner, who adds in rank order: what one
            process would compute that accumulates the ranks' tensors, bitwise, at any N. ring: N-1
            rounds, each passing a partial sum on. Both send (N-1)/N S, the least there is. auto:
            ring.
        deadline: the longest wait for any one message.

    Raises:
        ValueError: sizes or dtypes do not fit, or a tensor is not contiguous.
        RuntimeError: as `broadcast`.
    """
    wire = Wire(group, deadline)
    parts_of(tensor, output, wire.size)
    flat = flat_view(tensor)
    if algorithm == "naive":
        parts = split_evenly(flat, wire.size)
        others = [rank for rank in range(wire.size) if rank != wire.rank]
        theirs = {rank: torch.empty_like(parts[wire.rank]) for rank in others}
        wire.exchange(
            [(parts[rank], rank) for rank in others], [(theirs[rank], rank) for rank in others]
        )
        theirs[wire.rank] = parts[wire.rank]
        total = theirs[0].clone()
        for rank in range(1, wire.size):
            total += theirs[rank]
        flat_view(output).copy_(total)
    elif algorithm in ("auto", "ring"):
        parts = split_evenly(flat.clone(), wire.size)
        _ring_reduce_scatter(parts, wire)
        flat_view(output).copy_(parts[wire.rank])
    else:
        raise _no_such(algorithm, ReduceScatterAlgorithm)
    return wire.traffic


def all_reduce(
    tensor: Tensor,
    group: dist.ProcessGroup | None = None,
    *,
    algorithm: Algorithm = "auto",
    deadline: timedelta = DEADLINE,
) -> Traffic:
    """Replace each rank's tensor by the sum of all, in place.

    Args:
        tensor: any shape, contiguous; the same shape and dtype on every rank.
        group: default all ranks.
        algorithm: naive: rank 0 receives one after another, adds in rank order and sends the sum to
            each. ring: reduce-scatter, then all-gather. doubling: in round k each rank swaps sums
            with the one at distance 2^k. auto: ring or doubling, by size.
        deadline: the longest wait for any one message.

    Raises:
        ValueError: the tensor is not contiguous, or there is no such algorithm.
        RuntimeError: as `broadcast`.
    """
    wire = Wire(group, deadline)
    flat = flat_view(tensor)
    if algorithm == "auto":
        algorithm = "ring" if flat.nbytes >= CROSSOVER_BYTES else "doubling"
    if algorithm == "naive":
        if wire.rank == 0:
            theirs = torch.empty_like(flat)
            for other in range(1, wire.size):
                wire.exchange([], [(theirs, other)])
                flat += theirs
            wire.exchange([(flat, other) for other in range(1, wire.size)], [])
        else:
            wire.exchange([(flat, 0)], [])
            wire.exchange([], [(flat, 0)])
    elif algorithm == "ring":
        parts = split_evenly(flat, wire.size)
        _ring_reduce_scatter(parts, wire)
        _ring_all_gather(parts, wire)
    elif algorithm == "doubling":
        _doubling_all_reduce(flat, wire)
    else:
        raise _no_such(algorithm, Algorithm)
    return wire.traffic


def _ring_reduce_scatter(parts: Sequence[Tensor], wire: Wire) -> None:
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


def _ring_all_gather(parts: Sequence[Tensor], wire: Wire) -> None:
    """Pass the parts around the ring: rank r has part r, and in each step sends on the last."""
    for step in range(wire.size - 1):
        wire.exchange(
            [(parts[(wire.rank - step) % wire.size], (wire.rank + 1) % wire.size)],
            [(parts[(wire.rank - 1 - step) % wire.size], (wire.rank - 1) % wire.size)],
        )


def _bruck_all_gather(parts: Sequence[Tensor], wire: Wire) -> None:
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


def _doubling_all_reduce(flat: Tensor, wire: Wire) -> None:
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


def _no_such(algorithm: str, offered: object) -> ValueError:
    return ValueError(f"no algorithm {algorithm!r} here, only {', '.join(get_args(offered))}")
