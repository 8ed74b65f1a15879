"""The sections of `lab bench fsdp`: ours and torch's fully_shard, a unit for each block."""

import sys
from typing import Any

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import ShardingStrategy, fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from lab.bench.compare import compared
from lab.bench.workers.harness import Bench, Rows, main
from lab.bench.workers.training import bare, batch_of, trainers
from lab.parallel import FullyShardedDataParallel

THEIRS = "FSDP2"
BLOCKS = ModuleWrapPolicy({nn.Sequential})
MEGA = 1e6


def step(bench: Bench) -> Rows:
    """Time of a step, and what a rank sends in it as its node counts; DDP for comparison."""
    models = {
        THEIRS: _torch(bench),
        "ours": _ours(bench),
        "ours, no prefetch": _ours(bench, backward_prefetch=None, forward_prefetch=False),
        f"{THEIRS}, no reshard": _torch(bench, reshard_after_forward=False),
        "ours, no reshard": _ours(bench, sharding_strategy=ShardingStrategy.SHARD_GRAD_OP),
        "torch DDP": TorchDDP(bare(bench)),
    }
    steps = trainers(models, batch_of(bench, bench.batch))
    rows = compared(bench.measure(steps), {THEIRS: THEIRS})
    sent = {name: bench.bytes_per_rank(call) for name, call in steps.items()}
    size = sum(parameter.nbytes for parameter in bare(bench).parameters())
    theirs = sent[THEIRS]
    for row in rows:
        mine = sent[row["step"]]
        row["MB sent"] = None if mine is None else mine / MEGA
        row["of the model"] = mine and mine / size
        row[f"bytes / {THEIRS}"] = mine and theirs and mine / theirs
    bench.notes.append(
        f"batch {bench.batch} on each rank, {size / MEGA:.1f} MB of parameters: FSDP2 sends "
        f"4(N-1)/N = {4 * bench.others:.3g}, ours 3(N-1)/N = {3 * bench.others:.3g}; "
        "MB sent: by each rank in a step, headers included"
    )
    return rows


def _ours(bench: Bench, **options: Any) -> nn.Module:
    return FullyShardedDataParallel(bare(bench), auto_wrap_policy=BLOCKS, **options)


def _torch(bench: Bench, **options: Any) -> nn.Module:
    model = bare(bench)
    mesh = init_device_mesh(bench.world.device.type, (bench.world.size,))
    for part in model:
        if isinstance(part, nn.Sequential):
            fully_shard(part, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    return model


SECTIONS = {"step": step}

if __name__ == "__main__":
    sys.exit(main(SECTIONS))
