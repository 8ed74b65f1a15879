"""FullyShardedDataParallel on GPUs with nccl. Without a GPU there are no tests in here."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lab.parallel import FSDP, CPUOffload, ShardingStrategy
from tests.parallel.test_cuda import STEPS, batch, nccl
from tests.ranks import RankPool


def blocks() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(3)))


def train(options: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Tensor], str]:
    device, group = nccl()
    model = blocks()
    for number, block in enumerate(model):
        model[number] = FSDP(block, group, device_id=device, **options)
    sharded = FSDP(model, group, device_id=device, **options)
    alone = blocks().to(device)
    optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (sharded, alone)]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        sharded(batch(dist.get_rank(), step)).square().mean().backward()
        for rank in range(dist.get_world_size()):
            alone(batch(rank, step).to(device)).square().mean().backward()
        for parameter in alone.parameters():
            assert parameter.grad is not None
            parameter.grad /= dist.get_world_size()
        for optimizer in optimizers:
            optimizer.step()
    sharded.clip_grad_norm_(1.0)
    home = next(sharded.parameters()).device.type
    found, expected = sharded.state_dict(), alone.state_dict()
    return {k: v.cpu() for k, v in found.items()}, {k: v.cpu() for k, v in expected.items()}, home


if torch.cuda.is_available():

    def test_training_on_gpus_equals_one_process(ranks: RankPool) -> None:
        offload = CPUOffload(offload_params=True)
        for options, where in (
            ({}, "cuda"),
            ({"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}, "cuda"),
            ({"cpu_offload": offload}, "cpu"),
        ):
            for found, expected, home in ranks.run(torch.cuda.device_count(), train, options):
                assert home == where
                for name, value in expected.items():
                    torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)
