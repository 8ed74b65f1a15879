"""The sections of `lab bench checkpoint`: how long a training stands still for its checkpoints."""

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict_saver import async_save, save
from torch.distributed.fsdp.wrap import ModuleWrapPolicy

from lab.bench.compare import compared
from lab.bench.workers.harness import Bench, Rows, main
from lab.bench.workers.training import Step, bare, batch_of, ours
from lab.parallel import FullyShardedDataParallel
from lab.training.checkpoints import Checkpoints

MEGA = 1e6
STEPS = 10
"""Training steps beside a checkpoint."""


class Saving:
    """A model with the states of Adam, and the folder of its checkpoints."""

    def __init__(self, bench: Bench, model: nn.Module, folder: Path) -> None:
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        self.inputs, self.targets = batch_of(bench, bench.batch)
        self.folder = folder
        self.pending: list[Callable[[], object]] = []
        self.step()

    def step(self) -> None:
        """A training step."""
        self.optimizer.zero_grad()
        nn.functional.cross_entropy(self.model(self.inputs), self.targets).backward()
        self.optimizer.step()

    def ours(self, *, asynchronous: bool) -> Step:
        """What saves a checkpoint."""
        folder = self.folder / ("asynchronous" if asynchronous else "synchronous")
        checkpoints = Checkpoints(folder, keep=1, asynchronous=asynchronous)

        def call() -> None:
            checkpoints.save(1, self.model, self.optimizer, {})
            self.pending.append(checkpoints.finish)

        return call

    def torchs(self, *, asynchronous: bool) -> Step:
        """The same by torch.distributed.checkpoint alone: no checksums, not atomic."""
        folder = self.folder / f"torch-{asynchronous}"

        def call() -> None:
            state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
            if asynchronous:
                future: Any = async_save(state, checkpoint_id=folder)
                self.pending.append(future.result)
            else:
                save(state, checkpoint_id=folder)

        return call

    def wait(self) -> None:
        """Until everything is on the disk."""
        while self.pending:
            self.pending.pop()()


def stall(bench: Bench) -> Rows:
    """Time until `save` returns; what goes on behind it is waited for outside of that time."""
    rows = []
    for kind in ("ddp", "fsdp"):
        saving = _saving(bench, kind)
        calls = {
            "synchronous": saving.ours(asynchronous=False),
            "asynchronous": saving.ours(asynchronous=True),
        }
        if kind == "ddp":
            calls["torch, synchronous"] = saving.torchs(asynchronous=False)
            calls["torch, asynchronous"] = saving.torchs(asynchronous=True)
        taken = bench.measure(calls, between=saving.wait)
        for row in compared(taken, {"synchronous": "synchronous"}, "save"):
            rows.append({"model": kind, **row})
        _remove(bench, saving)
    bench.notes.append(f"{_bytes(bench) / MEGA:.0f} MB: a model and the states of Adam")
    return rows


def steps(bench: Bench) -> Rows:
    """Some training steps and a checkpoint, until both are done."""
    saving = _saving(bench, "ddp")

    def trained(call: Step | None) -> Step:
        def run() -> None:
            if call is not None:
                call()
            for _ in range(STEPS):
                saving.step()
            saving.wait()

        return run

    calls = {
        "no checkpoint": trained(None),
        "synchronous": trained(saving.ours(asynchronous=False)),
        "asynchronous": trained(saving.ours(asynchronous=True)),
    }
    taken = bench.measure(calls)
    _remove(bench, saving)
    bench.notes.append(
        f"{STEPS} steps of batch {bench.batch} and a checkpoint of {_bytes(bench) / MEGA:.0f} MB"
    )
    return compared(taken, {"no checkpoint": "no checkpoint"}, "steps with")


def _saving(bench: Bench, kind: str) -> Saving:
    if kind == "ddp":
        model = ours(bench)
    else:
        blocks = ModuleWrapPolicy({nn.Sequential})
        model = FullyShardedDataParallel(bare(bench), auto_wrap_policy=blocks)
    folder = [tempfile.mkdtemp(dir=os.environ.get("LAB_RUN_DIR"))] if bench.world.is_main else [""]
    dist.broadcast_object_list(folder, 0)
    return Saving(bench, model, Path(folder[0]))


def _bytes(bench: Bench) -> int:
    return 3 * sum(parameter.nbytes for parameter in bare(bench).parameters())


def _remove(bench: Bench, saving: Saving) -> None:
    dist.barrier()
    if bench.world.is_main:
        shutil.rmtree(saving.folder, ignore_errors=True)
    dist.barrier()


SECTIONS = {"stall": stall, "steps": steps}

if __name__ == "__main__":
    sys.exit(main(SECTIONS))
