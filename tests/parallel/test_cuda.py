"""lab.parallel on GPUs with nccl, one rank on each. Without a GPU there are no tests in here."""

import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lab.parallel import DDP, HierarchicalAllReduce, ZeroRedundancyOptimizer, collectives
from lab.parallel.ordered import all_reduce_ordered
from tests.ranks import RankPool

STEPS = 3


def nccl() -> tuple[torch.device, dist.ProcessGroup]:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    group = dist.new_group(backend="nccl")
    assert group is not None
    return device, group


class TwoStreams(nn.Module):
    """The second layer works on a stream of its own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 64)
        self.stream: Any = None

    def forward(self, inputs: Tensor) -> Tensor:
        here = torch.cuda.current_stream()
        self.stream = self.stream or torch.cuda.Stream()
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            beside: Tensor = self.second(inputs)
        result: Tensor = self.first(inputs)
        here.wait_stream(self.stream)
        return result + beside


def batch(rank: int, step: int) -> Tensor:
    return torch.randn(8, 64, generator=torch.Generator().manual_seed(10 * step + rank))


def one_process(device: torch.device, world_size: int) -> list[Tensor]:
    model = TwoStreams().to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank in range(world_size):
            model(batch(rank, step).to(device)).square().mean().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= world_size
        optimizer.step()
    return [p.detach().cpu() for p in model.parameters()]


def train(stage: int) -> tuple[list[Tensor], list[Tensor]]:
    device, group = nccl()
    bare = TwoStreams().to(device)
    model = DDP(bare, device_ids=[device], process_group=group, bucket_cap_mb=0)
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if stage:
        more: dict[str, Any] = {"stage": 2, "model": model} if stage == 2 else {}
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.Adam, group, lr=0.01, **more
        )
    for step in range(STEPS):
        optimizer.zero_grad()
        model(batch(dist.get_rank(), step)).square().mean().backward()
        optimizer.step()
    found = [p.detach().cpu() for p in bare.parameters()]
    return found, one_process(device, dist.get_world_size())


def sums() -> list[Tensor]:
    device, group = nccl()
    reducer = HierarchicalAllReduce(group)
    calls: list[Callable[[Tensor], Any]] = [
        lambda tensor: all_reduce_ordered(tensor, group),
        lambda tensor: collectives.all_reduce(tensor, group, algorithm="ring"),
        lambda tensor: collectives.all_reduce(tensor, group, algorithm="doubling"),
        reducer.all_reduce,
    ]
    found = []
    for call in calls:
        tensor = torch.full((1000,), dist.get_rank() + 1.0, device=device)
        call(tensor)
        found.append(tensor.cpu())
    return found


if torch.cuda.is_available():
    RANKS = torch.cuda.device_count()

    def test_training_on_gpus_equals_one_process(ranks: RankPool) -> None:
        for stage in (0, 1, 2):
            for found, expected in ranks.run(RANKS, train, stage):
                for a, b in zip(found, expected, strict=True):
                    torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)

    def test_sums_on_gpus(ranks: RankPool) -> None:
        expected = torch.full((1000,), RANKS * (RANKS + 1) / 2)
        for found in ranks.run(RANKS, sums):
            assert all(torch.equal(tensor, expected) for tensor in found)
