"""The hierarchical all-reduce among real ranks, which say that they are on several nodes."""

import gc
import itertools
import os
import signal
import socket
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from lab.parallel import DDP, HierarchicalAllReduce, comm_hooks, hierarchical, node_memory
from lab.parallel.wire import Traffic
from tests.ranks import RankError, RankPool

SIZES = (0, 1, 5, 1000, 4099)
"""Elements; with chunks of 4 KiB from none to five of them, the last one short."""

LAYOUTS = {
    "one rank": "a",
    "one node": "aaa",
    "two nodes of two": "aabb",
    "dealt out": "abab",
    "uneven": "abbb",
    "no neighbours": "abc",
}


def values(rank: int, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * count + rank)
    return torch.randn(count, generator=generator).to(dtype)


def sum_by_nodes(layout: str, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """In rank order within nodes, then in the nodes' order."""
    sums: dict[str, Tensor] = {}
    for rank, node in enumerate(layout):
        tensor = values(rank, count, dtype)
        sums[node] = sums[node] + tensor if node in sums else tensor
    first, *others = sums.values()
    for other in others:
        first = first + other
    return first


Results = dict[tuple[int, int], tuple[Tensor, Traffic]]


def all_reduces(layout: str) -> Results:
    rank = dist.get_rank()
    found = {}
    fewest = min(layout.count(node) for node in layout)
    for leaders in {1, fewest}:
        reducer = HierarchicalAllReduce(
            node=layout[rank], leaders=leaders, chunk_bytes=4096, measure=False
        )
        for count in SIZES:
            tensor = values(rank, count)
            traffic = reducer.all_reduce(tensor, algorithm="hierarchical")
            found[leaders, count] = tensor, traffic
        # Many at once, without a pause in between: places in shared memory are used again.
        tensors = [values(rank, count) for count in SIZES * 3]
        pending = [reducer.start(tensor, algorithm="hierarchical") for tensor in tensors]
        for tensor, one in zip(tensors, pending, strict=True):
            assert one.wait() is tensor
            assert torch.equal(tensor, found[leaders, len(tensor)][0])
        for dtype in (torch.float64, torch.bfloat16, torch.int64):
            tensor = (10 * values(rank, 4099)).to(dtype)
            expected = tensor.clone()
            dist.all_reduce(expected)
            reducer.all_reduce(tensor, algorithm="hierarchical")
            torch.testing.assert_close(tensor, expected, rtol=2e-2, atol=0.3)
        reducer.close()
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_all_ranks_get_the_sum_by_nodes_bitwise(ranks: RankPool, name: str) -> None:
    layout = LAYOUTS[name]
    results = ranks.run(len(layout), all_reduces, layout)
    nodes = len(set(layout))
    for result in results:
        for (_, count), (tensor, _) in result.items():
            assert torch.equal(tensor, sum_by_nodes(layout, count))
    for leaders, count in results[0]:
        traffic = [result[leaders, count][1] for result in results]
        for node in set(layout):
            sent = sum(t.sent_bytes for t, at in zip(traffic, layout, strict=True) if at == node)
            # Up to an element for each part of each chunk.
            chunks = -(-4 * count // 4096)
            slack = 4 * nodes * leaders * chunks
            assert abs(sent - 2 * (nodes - 1) * 4 * count / nodes) <= slack
        assert sum(t.sent_bytes for t in traffic) == sum(t.received_bytes for t in traffic)
        assert sum(t.sent_bytes > 0 for t in traffic) <= leaders * nodes


def choices(layout: str, device: str) -> list[str]:
    reducer = HierarchicalAllReduce(node=layout[dist.get_rank()], measure=False)
    found: list[str] = []
    for size in (1, hierarchical.SMALL_BYTES // 4, 2**20):
        tensor = torch.ones(size)
        traffic = reducer.all_reduce(tensor)
        assert torch.equal(tensor, torch.full((size,), float(len(layout))))
        if reducer.choose(tensor) == "flat":
            assert traffic.sent_bytes == 2 * (len(layout) - 1) * 4 * size // len(layout)
        found.append(reducer.choose(torch.empty(size, device=device)))
    return found


def test_auto_takes_it_where_it_pays(ranks: RankPool) -> None:
    assert ranks.run(4, choices, "aabb", "cpu") == [["hierarchical"] * 3] * 4
    assert ranks.run(4, choices, "aabb", "meta") == [["flat"] * 3] * 4, "not in CPU memory"
    assert ranks.run(3, choices, "abc", "cpu") == [["flat"] * 3] * 3, "nothing to add inside"
    assert ranks.run(3, choices, "aaa", "cpu") == [["flat"] * 3] * 3, "nothing slow between"


def measured(slowdowns: Sequence[float]) -> tuple[list[str], int]:
    """What is chosen where rank 3 takes flat's time to be longer by that factor in each trial.

    The other ranks see no difference. The first trial does not count.
    """
    took = [seconds for slowdown in slowdowns for seconds in (1.0, slowdown)]
    calls = itertools.count()

    def perf_counter() -> float:
        call = next(calls)
        last = dist.get_rank() == 3
        return (took[call // 2] if last else 1.0) if call % 2 else 0.0

    with patch("time.perf_counter", perf_counter):
        reducer = HierarchicalAllReduce(node="aabb"[dist.get_rank()])
    small, large = torch.empty(hierarchical.SMALL_BYTES // 4), torch.empty(2**20)
    return [reducer.choose(small), reducer.choose(large)], next(calls) // 4


def test_auto_measures_what_is_faster_for_large_tensors(ranks: RankPool) -> None:
    trials = hierarchical.TRIALS
    always = ["hierarchical", "hierarchical"], 1 + trials
    assert ranks.run(4, measured, [1.0] + [2.0] * trials) == [always] * 4
    assert ranks.run(4, measured, [1.0] * 2) == [(["hierarchical", "flat"], 2)] * 4
    assert ranks.run(4, measured, [2.0, 1.05]) == [(["hierarchical", "flat"], 2)] * 4, "by chance"
    but_for_one = [1.0] + [2.0] * (trials - 1) + [0.5]
    assert ranks.run(4, measured, but_for_one) == [(["hierarchical", "flat"], 1 + trials)] * 4


def in_a_subgroup() -> float:
    """Ranks 1 and 3 of four."""
    group = dist.new_group([1, 3])
    if dist.get_rank() not in (1, 3):
        return 0.0
    reducer = HierarchicalAllReduce(group, node="here")
    tensor = torch.tensor([float(dist.get_rank())])
    reducer.all_reduce(tensor, algorithm="hierarchical")
    return tensor.item()


def test_any_process_group(ranks: RankPool) -> None:
    assert ranks.run(4, in_a_subgroup) == [0.0, 4.0, 0.0, 4.0]


def places(names: Sequence[tuple[str, str]]) -> str:
    for name, _ in (("GROUP_RANK", ""), ("SLURM_NODEID", "")):
        os.environ.pop(name, None)
    os.environ.update(names)
    try:
        return node_memory.node_from_environment()
    finally:
        for name, _ in names:
            del os.environ[name]


def test_the_node_is_the_launchers(ranks: RankPool) -> None:
    assert ranks.run(1, places, [("GROUP_RANK", "3"), ("SLURM_NODEID", "7")]) == ["3"]
    assert ranks.run(1, places, [("SLURM_NODEID", "7")]) == ["7"]
    assert ranks.run(1, places, []) == [socket.gethostname()]


def train(layout: str) -> tuple[list[Tensor], list[Tensor]]:
    """With the hook, several buckets under way during backward; and without."""
    found = []
    for hooked in (True, False):
        torch.manual_seed(0)
        model = DDP(nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)]), bucket_cap_mb=0.01)
        reducer = HierarchicalAllReduce(
            node=layout[dist.get_rank()], chunk_bytes=4096, measure=False
        )
        if hooked:
            model.register_comm_hook(reducer, comm_hooks.hierarchical_hook)
        inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(dist.get_rank()))
        for _ in range(2):
            model.zero_grad()
            model(inputs).square().mean().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    return found[0], found[1]


def test_as_a_communication_hook(ranks: RankPool) -> None:
    results = ranks.run(4, train, "aabb")
    for hooked, plain in results:
        assert len(hooked) == 8
        for one, other, first in zip(hooked, plain, results[0][0], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
            assert torch.equal(one, first), "ranks differ"


def many_chunks() -> Tensor:
    rank = dist.get_rank()
    reducer = HierarchicalAllReduce(
        node="aaab"[rank], chunk_bytes=64, deadline=timedelta(seconds=15), measure=False
    )
    tensor = values(rank, 16 * 700)
    reducer.all_reduce(tensor, algorithm="hierarchical")
    reducer.close()
    return tensor


def test_signals_that_nobody_awaits_do_not_pile_up(ranks: RankPool) -> None:
    """Two ranks that lead nothing have nothing to tell each other; a socket holds 278 signals."""
    for tensor in ranks.run(4, many_chunks):
        assert torch.equal(tensor, sum_by_nodes("aaab", 16 * 700))


def files_of_node_memory() -> list[str]:
    """Of this process, as Linux names them."""
    descriptors = Path("/proc/self/fd")
    names = [str(path.readlink()) for path in descriptors.iterdir() if path.is_symlink()]
    return [name for name in names if "lab-node-memory" in name]


def what_is_held() -> tuple[list[str], list[str]]:
    reducer = HierarchicalAllReduce(node="here")
    held = files_of_node_memory()
    reducer.close()
    del reducer
    gc.collect()
    return held, files_of_node_memory()


def test_the_memory_has_no_name_that_could_stay(ranks: RankPool) -> None:
    for held, afterwards in ranks.run(2, what_is_held):
        assert held == ["/memfd:lab-node-memory (deleted)"]
        assert afterwards == []


def rank_1_dies() -> str:
    reducer = HierarchicalAllReduce(node="here", deadline=timedelta(seconds=10))
    reducer.all_reduce(torch.ones(8), algorithm="hierarchical")
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    with pytest.raises(RuntimeError) as caught:
        reducer.all_reduce(torch.ones(8), algorithm="hierarchical")
    assert time.monotonic() - began < 10, "noticed, not waited for"
    raise ValueError(str(caught.value))


def test_a_rank_that_dies_is_noticed_and_named(ranks: RankPool) -> None:
    with pytest.raises(RankError, match="rank 0: rank 1, with which it shares a node's memory"):
        ranks.run(2, rank_1_dies)


def rank_1_does_not_come() -> str:
    reducer = HierarchicalAllReduce(node="here", deadline=timedelta(seconds=0.2))
    message = ""
    if dist.get_rank() == 0:
        with pytest.raises(RuntimeError) as caught:
            reducer.all_reduce(torch.ones(8), algorithm="hierarchical")
        message = str(caught.value)
    dist.barrier()
    return message


def test_a_rank_that_does_not_come_is_named_after_the_deadline(ranks: RankPool) -> None:
    message = ranks.run(2, rank_1_does_not_come)[0]
    assert message == "rank 0: no signal from rank 1 of this node within 0.2 s"


def refusals() -> list[str]:
    reducer = HierarchicalAllReduce()
    calls: list[Callable[[], Any]] = [
        lambda: HierarchicalAllReduce(leaders=2),
        lambda: HierarchicalAllReduce(leaders=0),
        lambda: reducer.all_reduce(torch.zeros(2, 3).t()),
        lambda: reducer.all_reduce(torch.zeros(2), algorithm="ring"),  # type: ignore[arg-type]  # on purpose
        lambda: reducer.all_reduce(torch.zeros(2, device="meta"), algorithm="hierarchical"),
    ]
    messages = []
    for call in calls:
        with pytest.raises(ValueError, match=r"\w") as caught:
            call()
        messages.append(str(caught.value))
    return messages


def test_what_cannot_be_is_refused_in_words(ranks: RankPool) -> None:
    assert ranks.run(1, refusals)[0] == [
        "2 leaders, and the smallest node has 1 ranks",
        "0 leaders, and the smallest node has 1 ranks",
        "the tensor must be contiguous: call contiguous() first",
        "no algorithm 'ring' here, only auto, hierarchical, flat",
        "the tensor is on meta, and nodes share CPU memory: take algorithm='flat'",
    ]
