"""The sections of `lab bench fsdp`: ours and torch's fully_shard, a unit for each block."""

import sys

from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from lab.bench.compare import compared
from lab.bench.workers.harness import Bench, Rows, main
from lab.bench.workers.training import bare, batch_of, trainers
from lab.parallel.fsdp import FullyShardedDataParallel

THEIRS = "FSDP2"
MEGA = 1e6


def step(bench: Bench) -> Rows:
    """Time of a step, and what a rank sends in it as its node counts; DDP for comparison."""
    models = {THEIRS: _torch(bench), "ours": _ours(bench), "torch DDP": TorchDDP(bare(bench))}
    steps = trainers(models, batch_of(bench, bench.batch))
    rows = compared(bench.measure(steps), {THEIRS: THEIRS})
    sent = {name: bench.bytes_per_rank(call) for name, call in steps.items()}
    size = sum(parameter.nbytes for parameter in bare(bench).parameters())
    theirs = sent[THEIRS]
    for row in rows:
        mine = sent[row["step"]]
        row["MB sent"] = None if mine is None else mine / MEGA
        row["x (N-1)/N of the model"] = mine and mine / size / bench.others
        row[f"bytes / {THEIRS}"] = mine and theirs and mine / theirs
    bench.notes.append(
        f"batch {bench.batch} on each rank, {size / MEGA:.1f} MB of parameters; "
        "MB sent: by each rank in a step, headers included"
    )
    return rows


def _ours(bench: Bench) -> nn.Module:
    model = bare(bench)
    units = [_wrapped(part) for part in model]
    return FullyShardedDataParallel(nn.Sequential(*units))


def _wrapped(part: nn.Module) -> nn.Module:
    return FullyShardedDataParallel(part) if isinstance(part, nn.Sequential) else part


def _torch(bench: Bench) -> nn.Module:
    model = bare(bench)
    mesh = init_device_mesh(bench.world.device.type, (bench.world.size,))
    for part in model:
        if isinstance(part, nn.Sequential):
            fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


SECTIONS = {"step": step}

if __name__ == "__main__":
    sys.exit(main(SECTIONS))
