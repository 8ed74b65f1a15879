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

`algorithms.py` has the steps of each, and their sources.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Literal, TypeVar

import torch.distributed as dist
from torch import Tensor

from lab.parallel import algorithms
from lab.parallel.wire import DEADLINE, Traffic, Wire, flat_view, parts_of, split_evenly

Algorithm = Literal["auto", "naive", "ring", "doubling"]
BroadcastAlgorithm = Literal["auto", "naive", "ring", "tree"]
ReduceScatterAlgorithm = Literal["auto", "naive", "ring"]

Run = TypeVar("Run", bound=Callable[..., None])
"""What does it, of `algorithms.py`."""

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
    offered = {
        "naive": algorithms.naive_broadcast,
        "ring": algorithms.ring_broadcast,
        "tree": algorithms.tree_broadcast,
    }
    _chosen(algorithm, offered, flat.nbytes)(flat, root, wire)
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
    offered = {
        "naive": algorithms.naive_all_gather,
        "ring": algorithms.ring_all_gather,
        "doubling": algorithms.bruck_all_gather,
    }
    _chosen(algorithm, offered, output.nbytes)(parts, wire)
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
    offered = {"naive": algorithms.naive_reduce_scatter, "ring": algorithms.ring_reduce_scatter}
    parts = split_evenly(flat_view(tensor).clone(), wire.size)
    _chosen(algorithm, offered, tensor.nbytes)(parts, wire)
    flat_view(output).copy_(parts[wire.rank])
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
    offered = {
        "naive": algorithms.naive_all_reduce,
        "ring": algorithms.ring_all_reduce,
        "doubling": algorithms.doubling_all_reduce,
    }
    _chosen(algorithm, offered, flat.nbytes)(flat, wire)
    return wire.traffic


def _chosen(algorithm: str, offered: Mapping[str, Run], nbytes: int) -> Run:
    """The algorithm of that name. The last offered has the fewest rounds: auto's for few bytes."""
    if algorithm == "auto":
        algorithm = "ring" if nbytes >= CROSSOVER_BYTES else list(offered)[-1]
    if algorithm not in offered:
        raise ValueError(f"no algorithm {algorithm!r} here, only {', '.join(['auto', *offered])}")
    return offered[algorithm]
