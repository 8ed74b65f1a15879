"""The section of `lab bench gpt`: how many bytes of text the small GPT is trained on in a second.

The models of `lab.training.gpt`, ours and torch's, on 1, 2, 4... ranks, all in the same processes:
where a model has fewer ranks than there are, the others wait.
"""

import os
import sys
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from lab.bench.compare import ratio, timing
from lab.bench.workers.harness import Bench, Rows, main
from lab.bench.workers.training import Step
from lab.parallel import DistributedDataParallel, FullyShardedDataParallel
from lab.training.gpt import GptOptions, loss
from lab.training.gpt_model import GPT, Block

OPTIONS = GptOptions()
Wrap = Callable[[GPT, Any], nn.Module]
"""Of a model and the process group that it is trained in."""


def step(bench: Bench) -> Rows:
    """A training step of each, as the Trainer does it: forward, backward, Adam."""
    sizes = [1]
    while sizes[-1] < bench.world.size:
        sizes.append(min(2 * sizes[-1], bench.world.size))
    names = {(name, size): f"{name} on {size}" for size in sizes for name in WRAPS}
    steps: dict[str, Step] = {}
    for size in sizes:
        group = dist.new_group(range(size))  # a collective of all ranks
        for name, wrap in WRAPS.items():
            mine = bench.world.rank < size
            steps[names[name, size]] = _trainer(bench, wrap, group) if mine else _wait
    taken = bench.measure(steps)
    bytes_per_rank = bench.batch * OPTIONS.context
    rows = []
    for (name, size), label in names.items():
        seconds = taken[label]
        # A step on n ranks trains on n times as many bytes: ideally in the time of one.
        efficiency = ratio("", taken[names[name, 1]], seconds)["/ "]
        theirs = f"torch {name.partition(' ')[2]}"
        rows.append(
            {
                "step": name,
                "ranks": size,
                "bytes/s": size * bytes_per_rank / median(seconds),
                "scaling": size * efficiency,
                **timing(seconds),
                **ratio("torch", seconds, taken[names[theirs, size]]),
            }
        )
    bench.notes.append(
        f"{OPTIONS.layers} blocks of width {bench.width}, {bench.batch} windows of "
        f"{OPTIONS.context} bytes on each rank, each with one thread; scaling: bytes/s against one "
        f"rank's, at best the number of ranks, and of cores: here {os.cpu_count()} on each machine"
    )
    return rows


def _trainer(bench: Bench, wrap: Wrap, group: Any) -> Step:
    torch.manual_seed(0)
    bare = GPT(OPTIONS.context, bench.width, OPTIONS.heads, OPTIONS.layers)
    model = wrap(bare.to(bench.world.device), group)
    optimizer = torch.optim.Adam(model.parameters())
    shape = (2, bench.batch, OPTIONS.context)
    batch = torch.randint(0, 128, shape, device=bench.world.device).unbind()

    def run() -> None:
        optimizer.zero_grad()
        (loss(model, batch) / batch[1].numel()).backward()
        optimizer.step()

    return run


def _wait() -> None:
    """Not a rank of that model: the others are waited for when the call has ended."""


def _our_fsdp(model: GPT, group: Any) -> nn.Module:
    return FullyShardedDataParallel(
        model, process_group=group, auto_wrap_policy=ModuleWrapPolicy({Block})
    )


def _torch_fsdp(model: GPT, group: Any) -> nn.Module:
    mesh = DeviceMesh.from_group(group, next(model.parameters()).device.type)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


WRAPS: dict[str, Wrap] = {
    "torch DDP": lambda model, group: TorchDDP(model, process_group=group),
    "our DDP": lambda model, group: DistributedDataParallel(model, process_group=group),
    "torch FSDP": _torch_fsdp,
    "our FSDP": _our_fsdp,
}
SECTIONS = {"step": step}

if __name__ == "__main__":
    sys.exit(main(SECTIONS))
