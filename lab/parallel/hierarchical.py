"""The hierarchical all-reduce: inside the node, between nodes, inside the node.

Ranks of one node can add their tensors in shared memory; only one sum per node then has to travel.
A flat ring of N ranks sends 2 (N-1)/N S out of each of n nodes, this one 2 (n-1)/n S: with two
nodes of four ranks S instead of 1.75 S, which is the ratio of times where the network is slow.

    reducer = HierarchicalAllReduce()   # a collective, once
    reducer.all_reduce(tensor)          # hierarchical where that pays, else the backend's own
    model.register_comm_hook(reducer, hierarchical_hook)  # of lab.parallel.DDP

Between nodes the sums are reduce-scattered and then all-gathered, each in one round of direct
messages, by one rank of each node, its leader, or by several, each with a part of the tensor. The
tensor goes through in chunks, so that the three stages of neighbouring chunks overlap.

For tensors on CPUs. nccl does the like of it itself, by NVLink and its own topology search.

Sources: Mikami et al., "Massively Distributed SGD: ImageNet/ResNet-50 Training in a Flash", 2018,
https://arxiv.org/abs/1811.05233 (several leaders: there a 2D torus); Jia et al., "Highly Scalable
Deep Learning Training System with Mixed-Precision", 2018, https://arxiv.org/abs/1807.11205.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from lab.parallel.node_memory import Listener, NodeMemory, node_from_environment
from lab.parallel.wire import DEADLINE, Traffic, Wire, flat_view, split_evenly

Algorithm = Literal["auto", "hierarchical", "flat"]

CHUNK_BYTES = 1024 * 1024
"""16 MiB among 2 nodes of 2 ranks over 200 Mbit/s took 708 to 715 ms with anything from 256 KiB to
2 MiB (flat 1087 ms); on loopback, where copies count, 88, 63, 47 and 46 ms (flat 47 ms)."""
SMALL_BYTES = 512 * 1024
"""Up to here `auto` takes it for its fewer rounds: at 1 to 256 KiB 0.4 to 0.7 times flat's time, on
loopback as well. Above, bytes decide: 200 Mbit/s made it 1.5 to 1.8 times faster at 16 MiB, but on
loopback, where copies are all there is, it took 1.0 to 1.4 times as long. So that is measured."""

TRIAL_BYTES = 4 * 1024 * 1024
TRIALS = 5
WINS_BELOW = 0.9
"""Of flat's time, in every trial. Where bytes decide, it always takes 0.7 or less; elsewhere a
single trial (and so the best of several) may be that fast by chance, and at 16 MiB it then took
1.2 times flat's time. So `auto` gains a tenth less at worst, and loses nothing."""

IN_FLIGHT = 3
"""Chunks under way at once, one in each stage. As many places has the shared memory."""

WRITTEN, DONE = range(2)
"""Signals: this rank's chunk is in shared memory; a leader's part of the sum is there."""


class HierarchicalAllReduce:
    """All-reduce for the ranks of one group, which knows who shares a node with whom.

    All ranks get the same bits: within a node sums are taken in the order of ranks, between nodes
    in the order of nodes, in the tensor's own dtype.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        node: int | str | None = None,
        leaders: int = 1,
        chunk_bytes: int = CHUNK_BYTES,
        deadline: timedelta = DEADLINE,
        measure: bool = True,
    ) -> None:
        """Find out who is where, and share memory within each node. A collective.

        Args:
            group: default all ranks.
            node: what ranks on one node have in common, and no others. Default: the node's number
                as launchers give it (GROUP_RANK, else SLURM_NODEID), else the host's name.
            leaders: how many ranks of each node talk to other nodes, its first ones. More of them
                share the work and cost messages: one was as fast or faster on 2 cores.
            chunk_bytes: how much goes through the stages at once.
            deadline: the longest wait for any one message or signal.
            measure: send 4 MiB each way up to five times, where there are several nodes and several
                ranks on one, to see which way `auto` should take for large tensors: two or three
                seconds at 200 Mbit/s. False: it takes the one with fewer bytes, the hierarchical.

        Raises:
            ValueError: more leaders than a node has ranks, or fewer than one.
            RuntimeError: ranks that name the same node cannot share memory.
        """
        self.group = group
        self.deadline = deadline
        self._own_group: Any = dist.new_group(
            dist.get_process_group_ranks(group or dist.group.WORLD),
            backend="gloo",
            use_local_synchronization=True,
        )
        self.rank = dist.get_rank(group)
        listener = Listener()
        places: list[Any] = [None] * dist.get_world_size(group)
        mine = (node if node is not None else node_from_environment(), listener.address)
        dist.all_gather_object(places, mine, group=self._own_group)
        by_node: dict[Any, list[int]] = {}
        for rank, (name, _) in enumerate(places):
            by_node.setdefault(name, []).append(rank)
        self.nodes = list(by_node.values())
        """The ranks of each node."""
        self._local = by_node[mine[0]]
        fewest = min(map(len, self.nodes))
        self.leaders = leaders
        if not 1 <= self.leaders <= fewest:
            raise ValueError(f"{leaders} leaders, and the smallest node has {fewest} ranks")
        self._chunk_bytes = -(-chunk_bytes // 64) * 64
        try:
            addresses = {rank: places[rank][1] for rank in self._local}
            size = IN_FLIGHT * (len(self._local) + 1) * self._chunk_bytes
            self._memory = NodeMemory(self.rank, addresses, listener, size, deadline)
        except OSError as error:
            raise RuntimeError(
                f"rank {self.rank}: ranks {self._local} all say that their node is {mine[0]!r} and "
                f"cannot share memory: {error}. Pass node=, a name that only ranks of one node have"
            ) from error
        finally:
            listener.close()
        self._chunks_before = 0
        self._background = ThreadPoolExecutor(1, "hierarchical-all-reduce")
        self.pays = len(self.nodes) > 1 and max(map(len, self.nodes)) > 1
        """Whether there is something to gain: several nodes, and several ranks on one."""
        self.pays_when_large = self.pays and (not measure or self._is_faster())

    def choose(self, tensor: Tensor) -> Literal["hierarchical", "flat"]:
        """What `auto` takes for this tensor: the same on all ranks."""
        pays = self.pays if tensor.nbytes <= SMALL_BYTES else self.pays_when_large
        return "hierarchical" if pays and tensor.device.type == "cpu" else "flat"

    def _is_faster(self) -> bool:
        """Try both ways until it loses once; all ranks find the same."""
        self._trial(self._chunk_bytes)  # makes connections
        return all(self._trial(TRIAL_BYTES) < WINS_BELOW for _ in range(TRIALS))

    def _trial(self, size: int) -> float:
        """Its time for so many bytes over flat's, on the slowest rank: the same on all."""
        tensor = torch.zeros(size // 4)
        dist.barrier(self._own_group)
        begin = time.perf_counter()
        self.all_reduce(tensor, algorithm="hierarchical")
        middle = time.perf_counter()
        dist.barrier(self._own_group)
        start = time.perf_counter()
        dist.all_reduce(tensor, group=self._own_group)
        taken = torch.tensor([middle - begin, time.perf_counter() - start])
        dist.all_reduce(taken, op=dist.ReduceOp.MAX, group=self._own_group)
        return float(taken[0] / taken[1])

    def all_reduce(self, tensor: Tensor, *, algorithm: Algorithm = "auto") -> Traffic:
        """Replace each rank's tensor by the sum of all, in place.

        Args:
            tensor: any shape, contiguous; the same shape and dtype on every rank.
            algorithm: auto, hierarchical, or flat, which is the backend's own.

        Returns:
            What this rank sent to and received from other nodes; for flat what a ring's ranks send
            each other, within nodes and between.

        Raises:
            ValueError: the tensor is not contiguous or not on the CPU, or no such algorithm.
            RuntimeError: a message or signal missed the deadline, or a rank is gone. This object is
                unusable then.
        """
        pending = self.start(tensor, algorithm=algorithm)
        pending.wait()
        return pending.traffic()

    def start(self, tensor: Tensor, *, algorithm: Algorithm = "auto") -> "Pending":
        """Begin the same in the background. Several finish in the order of their beginnings.

        Args and raises: as `all_reduce`. The tensor must be left alone until `wait()`.
        """
        if algorithm not in get_args(Algorithm):
            raise ValueError(
                f"no algorithm {algorithm!r} here, only {', '.join(get_args(Algorithm))}"
            )
        flat = flat_view(tensor)
        if algorithm == "auto":
            algorithm = self.choose(tensor)
        if algorithm == "flat":
            work = dist.all_reduce(flat, group=self.group, async_op=True)
            return Pending(tensor, work.wait, lambda: self._traffic_of_a_ring(flat))
        if flat.device.type != "cpu":
            raise ValueError(
                f"the tensor is on {flat.device}, and nodes share CPU memory: take algorithm='flat'"
            )
        future = self._background.submit(self._all_reduce, flat)
        return Pending(tensor, future.result, future.result)

    def _traffic_of_a_ring(self, flat: Tensor) -> Traffic:
        ranks = dist.get_world_size(self.group)
        count = 2 * (ranks - 1) * flat.nbytes // ranks
        return Traffic(count, count, 2 * (ranks - 1))

    def _all_reduce(self, flat: Tensor) -> Traffic:
        wire = Wire(self._own_group, self.deadline)
        under_way: deque[Iterator[None]] = deque()
        chunks = iter(flat.split(self._chunk_bytes // flat.element_size()) if len(flat) else ())
        while True:
            chunk = next(chunks, None)
            if chunk is not None:
                under_way.appendleft(self._pass_through(chunk, wire))
            if not under_way:
                return wire.traffic
            # The newest first: the wire has something to do while the older ones wait for it.
            for one in list(under_way):
                if next(one, under_way) is under_way:
                    under_way.remove(one)

    def _pass_through(self, chunk: Tensor, wire: Wire) -> Iterator[None]:
        """One chunk's way in three stages; a yield after each lets those of other chunks go on.

        All ranks take the stages of all chunks in one order. So a place in shared memory is free
        again when `_all_reduce` comes back to it, IN_FLIGHT chunks later: a rank writes its chunk
        after DONE of the last but two, when each leader has read the last; and a leader writes its
        sum after WRITTEN of this chunk from all, who have by then copied the last but two.
        """
        number = self._chunks_before
        self._chunks_before += 1
        inputs, result = self._places(number % IN_FLIGHT, chunk)
        me = self._local.index(self.rank)
        leaders = self._local[: self.leaders]
        inputs[me].copy_(chunk)
        self._memory.signal(WRITTEN, leaders)
        if me < self.leaders:
            self._memory.wait(WRITTEN, number + 1, self._local)
            mine = [split_evenly(one, self.leaders)[me] for one in (*inputs, result)]
            yield from self._lead(mine[:-1], mine[-1], [ranks[me] for ranks in self.nodes], wire)
            self._memory.signal(DONE, self._local)
        else:
            yield
            yield
        self._memory.wait(DONE, number + 1, leaders)
        chunk.copy_(result)

    def _lead(
        self, inputs: list[Tensor], total: Tensor, peers: list[int], wire: Wire
    ) -> Iterator[None]:
        """A leader's part: add up inside, then with its peers on the other nodes."""
        _add_up(inputs, total)
        me = peers.index(self.rank)
        others = [place for place in range(len(peers)) if place != me]
        parts = split_evenly(total, len(peers))
        theirs = [torch.empty_like(parts[me]) for _ in peers]
        finish = wire.post(
            [(parts[place], peers[place]) for place in others],
            [(theirs[place], peers[place]) for place in others],
        )
        yield
        finish()
        theirs[me].copy_(parts[me])
        _add_up(theirs, parts[me])
        finish = wire.post(
            [(parts[me], peers[place]) for place in others],
            [(parts[place], peers[place]) for place in others],
        )
        yield
        finish()

    def _places(self, place: int, chunk: Tensor) -> tuple[list[Tensor], Tensor]:
        """Shared memory, as tensors like the chunk: what the ranks of this node put in; the sum."""
        rows = self._memory.bytes.view(IN_FLIGHT, -1, self._chunk_bytes)[place, :, : chunk.nbytes]
        *inputs, result = (row.view(chunk.dtype) for row in rows)
        return inputs, result

    def close(self) -> None:
        """Give up the shared memory and the connections. Afterwards this object is unusable."""
        self._background.shutdown()
        self._memory.close()


@dataclass(frozen=True)
class Pending:
    """An all-reduce under way."""

    tensor: Tensor
    finish: Callable[[], Any]
    traffic: Callable[[], Traffic]
    """After `wait`: as `HierarchicalAllReduce.all_reduce` returns it."""

    def wait(self) -> Tensor:
        """Wait for its end, and give the tensor, which then holds the sum."""
        self.finish()
        return self.tensor


def _add_up(tensors: list[Tensor], total: Tensor) -> None:
    """The sum in the order of the list, bitwise so on all ranks."""
    if len(tensors) == 1:
        total.copy_(tensors[0])
        return
    torch.add(tensors[0], tensors[1], out=total)
    for tensor in tensors[2:]:
        total += tensor
