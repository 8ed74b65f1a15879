"""Checkpoints of one training: saved whole or not at all, the newest few kept, loaded anywhere."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.optim import Optimizer

from lab.training.checkpoint import load_checkpoint, save_checkpoint


class Checkpoints:
    """Those of one training, in one folder that all ranks see: `step-00000100` and so on."""

    def __init__(self, folder: Path, *, keep: int = 3, asynchronous: bool = False) -> None:
        """Nothing is read or written yet.

        Args:
            folder: made with the first save.
            keep: how many of the newest stay.
            asynchronous: `save` returns as soon as it has a copy of the state, and it is written
                while training goes on. Call `finish` at the end.
        """
        self.folder = folder
        self.keep = keep
        self.asynchronous = asynchronous

    def save(
        self, step: int, model: nn.Module, optimizer: Optimizer, progress: Mapping[str, Any]
    ) -> None:
        """Save the state after a step. A collective.

        Args:
            step: names the checkpoint.
            model: bare or wrapped.
            optimizer: of its parameters.
            progress: what else is needed to go on: plain data, equal on all ranks. Each rank's
                random states are saved as well.
        """
        if not dist.is_initialized() or dist.get_rank() == 0:
            bare = model.module if isinstance(model, TorchDDP) else model
            state = {
                "model": bare.state_dict(),
                "optimizer": optimizer.state_dict(),
                "progress": dict(progress),
                "random": (random.getstate(), torch.get_rng_state()),
            }
            save_checkpoint(state, self.folder / f"step-{step:08d}" / "state.pt")

    def load(self, model: nn.Module, optimizer: Optimizer) -> dict[str, Any] | None:
        """Load the newest good checkpoint into the model and the optimizer. A collective.

        Returns:
            Its progress; None where there is no checkpoint.
        """
        found = sorted(self.folder.glob("step-*"))
        if not found:
            return None
        state = load_checkpoint(found[-1] / "state.pt")
        bare = model.module if isinstance(model, TorchDDP) else model
        bare.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        random.setstate(state["random"][0])
        torch.set_rng_state(state["random"][1])
        progress: dict[str, Any] = state["progress"]
        return progress

    def finish(self) -> None:
        """Wait until what `save` began is on the disk. A collective."""
