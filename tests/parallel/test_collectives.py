"""The collectives from scratch, among real ranks: results, bits, bytes and deadlines."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from lab.parallel import collectives
from lab.parallel.ordered import all_reduce_ordered, start_all_reduce_ordered
from lab.parallel.wire import Traffic
from tests.ranks import RankPool

WORLD_SIZES = (1, 2, 3, 4)
SIZES = (0, 1, 3, 4, 13, 4096)
"""Elements: none, fewer than ranks, not divisible, divisible."""


def values(rank: int, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * count + rank)
    return torch.randn(count, generator=generator).to(dtype)


def rank_ordered_sum(world_size: int, count: int, dtype: torch.dtype = torch.float32) -> Tensor:
    total = values(0, count, dtype)
    for rank in range(1, world_size):
        total += values(rank, count, dtype)
    return total


def all_reduces() -> dict[tuple[str, int], tuple[Tensor, Traffic]]:
    found = {}
    for algorithm in ("naive", "ring", "doubling", "auto"):
        for count in SIZES:
            tensor = values(dist.get_rank(), count)
            traffic = collectives.all_reduce(tensor, algorithm=algorithm)
            found[algorithm, count] = tensor, traffic
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_all_reduce(ranks: RankPool, world_size: int) -> None:
    results = ranks.run(world_size, all_reduces)
    for key, (first, _) in results[0].items():
        algorithm, count = key
        expected = rank_ordered_sum(world_size, count)
        torch.testing.assert_close(first, expected, rtol=1e-6, atol=1e-6)
        if algorithm == "naive" or world_size <= 2:
            assert torch.equal(first, expected)
        assert all(torch.equal(result[key][0], first) for result in results), "ranks differ"
    n = world_size
    size = 4 * 4096
    for rank, result in enumerate(results):
        ring = result["ring", 4096][1]
        assert ring.rounds == 2 * (n - 1)
        assert abs(ring.sent_bytes - 2 * (n - 1) * size / n) <= 8 * n
        assert result["naive", 4096][1].sent_bytes == (size if rank else (n - 1) * size)
    if n in (2, 4):
        rounds = n // 2
        doubling = Traffic(rounds * size, rounds * size, rounds)
        assert all(result["doubling", 4096][1] == doubling for result in results)
    for key in results[0]:
        sent = sum(result[key][1].sent_bytes for result in results)
        assert sent == sum(result[key][1].received_bytes for result in results)


def scatters_and_gathers() -> dict[tuple[str, int], tuple[Tensor, Tensor, Traffic, Traffic]]:
    rank, size = dist.get_rank(), dist.get_world_size()
    found = {}
    for algorithm in ("naive", "ring"):
        for count in SIZES:
            whole = values(rank, count * size)
            kept = whole.clone()
            part = torch.empty(count)
            scattered = collectives.reduce_scatter(part, whole, algorithm=algorithm)
            assert torch.equal(whole, kept)
            gathered = {}
            for gather in (algorithm, "doubling"):
                output = torch.empty(count * size)
                traffic = collectives.all_gather(output, part, algorithm=gather)
                gathered[gather] = output, traffic
            assert torch.equal(gathered[algorithm][0], gathered["doubling"][0])
            found[algorithm, count] = part, *gathered[algorithm][:1], scattered, traffic
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_reduce_scatter_and_all_gather(ranks: RankPool, world_size: int) -> None:
    results = ranks.run(world_size, scatters_and_gathers)
    for rank, result in enumerate(results):
        for (algorithm, count), (part, gathered, scattered, gathering) in result.items():
            expected = rank_ordered_sum(world_size, count * world_size)
            mine = expected[rank * count : (rank + 1) * count]
            torch.testing.assert_close(part, mine, rtol=1e-6, atol=1e-6)
            if algorithm == "naive":
                assert torch.equal(part, mine), "adds in rank order"
                assert torch.equal(gathered, expected)
            ideal = 4 * count * (world_size - 1)
            assert scattered.sent_bytes == scattered.received_bytes == ideal
            assert gathering.sent_bytes == gathering.received_bytes == ideal


def broadcasts() -> list[tuple[str, int, int, Tensor]]:
    rank, size = dist.get_rank(), dist.get_world_size()
    found = []
    for algorithm in ("naive", "tree", "ring", "auto"):
        for root in range(size):
            for count in SIZES:
                tensor = values(rank, count).view(-1, 1)
                collectives.broadcast(tensor, root, algorithm=algorithm)
                found.append((algorithm, root, count, tensor.view(-1)))
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_broadcast_from_any_root(ranks: RankPool, world_size: int) -> None:
    for result in ranks.run(world_size, broadcasts):
        for _, root, count, tensor in result:
            assert torch.equal(tensor, values(root, count))


def ordered(dtype: torch.dtype) -> list[Tensor]:
    rank = dist.get_rank()
    tensors = [values(rank, count, dtype) for count in SIZES]
    for tensor in tensors:
        all_reduce_ordered(tensor)
    # Several at once, finished in the same order.
    others = [values(rank, count, dtype) for count in SIZES]
    pending = [start_all_reduce_ordered(tensor) for tensor in others]
    assert [one.wait() is other for one, other in zip(pending, others, strict=True)] == [True] * 6
    assert all(torch.equal(*pair) for pair in zip(tensors, others, strict=True))
    return tensors


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_ordered_all_reduce_has_one_processs_bits(
    ranks: RankPool, world_size: int, dtype: torch.dtype
) -> None:
    for result in ranks.run(world_size, ordered, dtype):
        for count, tensor in zip(SIZES, result, strict=True):
            assert torch.equal(tensor, rank_ordered_sum(world_size, count, dtype))


def within_pairs() -> list[float]:
    """Groups {3, 1} and {0, 2}: other numbers inside than outside."""
    rank = dist.get_rank()
    groups = [dist.new_group([3, 1]), dist.new_group([0, 2])]
    group = groups[0 if rank in (3, 1) else 1]
    calls: list[Callable[[Tensor], Any]] = [
        lambda tensor: collectives.all_reduce(tensor, group),
        lambda tensor: collectives.all_reduce(tensor, group, algorithm="ring"),
        lambda tensor: all_reduce_ordered(tensor, group),
        lambda tensor: collectives.broadcast(tensor, 1, group),
    ]
    found = []
    for call in calls:
        tensor = torch.full((3,), float(rank))
        call(tensor)
        found.append(tensor[2].item())
    return found


def test_any_process_group(ranks: RankPool) -> None:
    results = ranks.run(4, within_pairs)
    assert [result[:3] for result in results] == [[2.0] * 3, [4.0] * 3, [2.0] * 3, [4.0] * 3]
    # new_group sorts its ranks: the second of {1, 3} is 3.
    assert [result[3] for result in results] == [2.0, 3.0, 2.0, 3.0]


def wait_for_rank_1_in_vain() -> str:
    if dist.get_rank() == 1:
        # Whatever comes, nothing goes to rank 0 within its deadline.
        with pytest.raises(RuntimeError):
            collectives.broadcast(torch.zeros(4), 0, deadline=timedelta(seconds=5))
        return ""
    with pytest.raises(RuntimeError) as caught:
        collectives.broadcast(torch.zeros(4), 1, deadline=timedelta(seconds=0.2))
    return str(caught.value)


def test_a_message_that_does_not_come_is_an_error_that_names_the_rank(ranks: RankPool) -> None:
    message, _ = ranks.run(2, wait_for_rank_1_in_vain)
    assert "rank 0 of 2: no message to or from rank 1 within 0.2 s" in message


def refusals() -> list[str]:
    calls: list[Callable[[], Any]] = [
        lambda: collectives.all_reduce(torch.zeros(2, 3).t()),
        lambda: all_reduce_ordered(torch.zeros(2, 3).t()),
        lambda: collectives.all_reduce(torch.zeros(2), algorithm="butterfly"),  # type: ignore[arg-type]  # on purpose
        lambda: collectives.reduce_scatter(torch.zeros(2), torch.zeros(2), algorithm="doubling"),  # type: ignore[arg-type]  # on purpose
        lambda: collectives.all_gather(torch.zeros(2), torch.zeros(3)),
        lambda: collectives.all_gather(torch.zeros(2).double(), torch.zeros(2)),
    ]
    messages = []
    for call in calls:
        with pytest.raises(ValueError, match=r"\w") as caught:
            call()
        messages.append(str(caught.value))
    return messages


def test_what_cannot_be_is_refused_in_words(ranks: RankPool) -> None:
    assert ranks.run(1, refusals)[0] == [
        "the tensor must be contiguous: call contiguous() first",
        "the tensor must be contiguous: call contiguous() first",
        "no algorithm 'butterfly' here, only auto, naive, ring, doubling",
        "no algorithm 'doubling' here, only auto, naive, ring",
        "1 parts of 3 torch.float32 do not make 2 torch.float32",
        "1 parts of 2 torch.float32 do not make 2 torch.float64",
    ]
