"""The all-to-all in little memory, among real ranks."""

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from lab.parallel.exchange import WINDOW, Exchange
from tests.ranks import RankPool


def parts(length: int, dtype: torch.dtype, number: int = 0) -> Tensor:
    """[N, length]: what this rank has for each."""
    generator = torch.Generator().manual_seed(dist.get_rank() + 100 * number)
    return torch.randn(dist.get_world_size(), length, generator=generator).to(dtype)


def expected(mine: Tensor) -> list[Tensor]:
    theirs = torch.empty_like(mine)
    dist.all_to_all_single(theirs.view(torch.uint8), mine.view(torch.uint8))
    return list(theirs)


def exchanged(shares: list[float]) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for length, dtype in ((1, torch.float32), (7, torch.bfloat16), (50_000, torch.float64)):
        mine = parts(length, dtype)
        wanted = expected(mine)
        exchange = Exchange(mine, None)
        assert exchange.nbytes == mine[0].nbytes * (size + min(size - 1, WINDOW))
        for share in shares:
            exchange.go_on(share)
            # In between, others: collectives, and messages of a script between the same ranks.
            total = torch.ones(1)
            dist.all_reduce(total)
            assert total.item() == size
            if size > 1:
                sent, got = torch.full((length,), rank), torch.empty(length, dtype=torch.int64)
                send = dist.isend(sent, (rank + 1) % size)
                dist.recv(got, (rank - 1) % size)
                assert send is not None
                send.wait()
                assert (got == (rank - 1) % size).all()
        for one, other in zip(exchange.finish(), wanted, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize(
    "shares", [[], [0.0, 0.3, 0.3, 0.9, 1.0]], ids=["at the end", "bit by bit"]
)
@pytest.mark.parametrize("world_size", [1, 2, 4, 6])
def test_each_gets_its_part_of_everybody(
    ranks: RankPool, world_size: int, shares: list[float]
) -> None:
    ranks.run(world_size, exchanged, shares)


def not_together() -> None:
    """Two at once, begun and finished in one order, driven by each rank when it likes."""
    both = [parts(1000, torch.float32, number) for number in range(2)]
    wanted = [expected(mine) for mine in both]
    exchanges = [Exchange(mine, None) for mine in both]
    for exchange in exchanges:
        exchange.go_on(dist.get_rank() / dist.get_world_size())
    for exchange, theirs in zip(exchanges, wanted, strict=True):
        for one, other in zip(exchange.finish(), theirs, strict=True):
            assert torch.equal(one, other)


def test_ranks_may_go_on_differently(ranks: RankPool) -> None:
    ranks.run(6, not_together)
