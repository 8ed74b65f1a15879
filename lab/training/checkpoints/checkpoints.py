"""Checkpoints of one training: saved whole or not at all, the newest few kept, loaded anywhere.

    with Checkpoints(Path("checkpoints")) as checkpoints:
        progress = checkpoints.load(model, optimizer)          # None: begin at the beginning
        for step in ...:
            ...
            checkpoints.save(step, model, optimizer, {"step": step, "epoch": epoch})

Whatever the model is wrapped in (nothing, DDP or FSDP of lab.parallel, torch's DDP or fully_shard)
and whether the optimiser is a plain one or a ZeroRedundancyOptimizer, the checkpoint is the same,
and loads into any other of these, on any number of ranks, with every bit.

The parts: `places.py` and `state.py` say which rank holds what, `chunks.py` how that is cut;
`planners.py` and `storage.py` write and read it; `manifest.py` says what has to be there,
`folder.py` lets it appear, `claim.py` keeps a second training out, and `loading.py` finds what can
be used.
"""

import operator
import shutil
import threading
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from lab.errors import LabError
from lab.training.checkpoints import folder as folders
from lab.training.checkpoints.chunks import Chunks, shared_out
from lab.training.checkpoints.claim import Claim
from lab.training.checkpoints.loading import load_last
from lab.training.checkpoints.manifest import (
    described,
)
from lab.training.checkpoints.planners import State, packed
from lab.training.checkpoints.random_states import random_states
from lab.training.checkpoints.ranks import Ranks
from lab.training.checkpoints.state import TrainingState
from lab.training.checkpoints.storage import write


class Checkpoints:
    """Those of one training, in one folder that all ranks see: `step-00000100` and so on."""

    def __init__(self, folder: Path, *, keep: int = 3, asynchronous: bool = False) -> None:
        """Nothing is read or written yet.

        Args:
            folder: made with the first save.
            keep: how many of the last saved stay.
            asynchronous: `save` returns as soon as it has a copy of the state, and it is written
                while training goes on; the copy's memory is kept. Call `finish` at the end, before
                the process group is left, or use `with`.
        """
        if keep < 1:
            raise ValueError(f"keep={keep}: at least one checkpoint must stay")
        self.folder = folder
        self.keep = keep
        self.asynchronous = asynchronous
        self._group: dist.ProcessGroup | None = None
        self._writing: threading.Thread | None = None
        self.loaded: Path | None = None
        """The checkpoint that `load` took, if any."""
        self._claim: Claim | None = None
        self._copies: dict[str, Chunks] = {}
        self._error: Exception | None = None

    def claim(self, *, patience: float = 0.0) -> None:
        """Keep other trainings from saving in the folder, until `close`. A collective.

        `save` does it, too; here it is known before anything is computed whether each rank can
        write there. What a crash has left in the folder is removed.

        Args:
            patience: seconds to wait for another training that ends.

        Raises:
            LabError: another training saves there, or a rank cannot write there.
        """
        if self._claim is None:
            self._claim = Claim(self.folder, self.ranks(), patience=patience)

    def set_aside(self) -> Path | None:
        """Move all that are there to a new folder beside: another training begins. A collective.

        Returns:
            The new folder; None where there was nothing.

        Raises:
            LabError: they cannot be moved, or see `claim`.
        """
        self.claim()
        return self.ranks().of_first(lambda: folders.set_aside(self.folder))

    def save(
        self, step: int, model: nn.Module, optimizer: Optimizer, progress: Mapping[str, Any]
    ) -> None:
        """Save the state after a step. A collective.

        Args:
            step: names the checkpoint. One of the same step is replaced if it is a good one.
            model: bare or wrapped. Its buffers are saved from rank 0.
            optimizer: of its parameters.
            progress: what else is needed to go on: plain data, equal on all ranks. Each rank's
                random states are saved as well.

        Raises:
            LabError: it could not be saved, or the one before it, if that was asynchronous. What
                was there before still is. Or see `claim`.
            ValueError: progress is not plain data, or the step is negative.
        """
        step = operator.index(step)
        if step < 0:
            raise ValueError(f"step {step}: steps count from 0")
        self.finish()
        ranks = self.ranks()
        training = TrainingState(model, optimizer)
        held = training.to_save(ranks.rank)
        chunks = {name: value for name, value in held.items() if isinstance(value, Chunks)}
        state: State = {
            **{name: value for name, value in held.items() if not isinstance(value, Chunks)},
            **shared_out(chunks, ranks.rank, ranks.size),
            "progress": packed(dict(progress)),
            f"random.{ranks.rank}": packed(random_states()),
        }
        about = {
            "step": step,
            "world_size": ranks.size,
            "torch": torch.__version__,
            "optimizer": training.optimizer_name,
            "progress": described(dict(progress)),
        }
        self.claim()
        if not self.asynchronous:
            self._write(state, about, ranks)
            return
        self._copies = {
            name: value.copied(self._copies.get(name))
            for name, value in state.items()
            if isinstance(value, Chunks)
        }
        self._writing = threading.Thread(
            target=self._write_behind, args=({**state, **self._copies}, about, ranks)
        )
        self._writing.start()

    def load(self, model: nn.Module, optimizer: Optimizer | None = None) -> dict[str, Any] | None:
        """Load the last saved good checkpoint into the model and the optimiser. A collective.

        A bad one is named on stderr, and the one before it is used. Random states are restored
        where there are as many ranks as saved it. Nothing is changed in the folder, in which
        another training may be saving.

        Args:
            model: the same model, wrapped in whatever.
            optimizer: of its parameters; None: the model is only to be used.

        Returns:
            Its progress, and `loaded` says where it was; None where there is no checkpoint.

        Raises:
            LabError: it is of another model, none of those that are there is good, or the ranks do
                not share the folder.
        """
        self.finish()
        found = load_last(self.folder, model, optimizer, self.ranks())
        progress, self.loaded = (None, None) if found is None else found
        return progress

    def finish(self) -> None:
        """Wait until what `save` began is on the disk. A collective.

        Raises:
            LabError: it could not be saved.
        """
        if self._writing is not None:
            self._writing.join()
            self._writing = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def close(self) -> None:
        """`finish`, and let another training save in the folder. A collective.

        Raises:
            LabError: what `save` began could not be saved.
        """
        try:
            self.finish()
        finally:
            if self._claim is not None:
                self._claim.release()
                self._claim = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """`close`, also when the training ended by an error: that error is the one to know."""
        with nullcontext() if kind is None else suppress(Exception):
            self.close()

    def ranks(self) -> Ranks:
        """Those that save together, in a group that no collective of the training is on."""
        if not dist.is_initialized():
            return Ranks(None)
        if not self.asynchronous and dist.get_backend() == "gloo":
            return Ranks(dist.group.WORLD)
        if self._group is None:
            self._group = dist.new_group(backend="gloo")
        return Ranks(self._group)

    def _write_behind(self, state: State, about: dict[str, Any], ranks: Ranks) -> None:
        try:
            self._write(state, about, ranks)
        except Exception as error:  # noqa: BLE001 - finish() raises it
            self._error = error

    def _write(self, state: State, about: dict[str, Any], ranks: Ranks) -> None:
        new: Path | None = None
        try:
            name, saved = ranks.of_first(lambda: self._begin(about["step"]))
            new = self.folder / name
            ranks.check_shared(new)
            write(state, new, {**about, "saved": saved}, ranks.group)
            ranks.of_first(lambda: folders.rotate(self.folder, self.keep))
        except Exception as error:
            if new is not None and ranks.rank == 0:
                shutil.rmtree(new, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            raise LabError(
                f"the checkpoint of step {about['step']} could not be saved in {self.folder}: "
                f"{error.strerror or error}; what was there before still is. Make room or rights "
                "there, or choose another folder"
            ) from error

    def _begin(self, step: int) -> tuple[str, str]:
        saved = folders.time_to_save(self.folder).isoformat(timespec="microseconds")
        return folders.begin(self.folder, step).name, saved
