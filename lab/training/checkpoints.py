"""Checkpoints of one training: saved whole or not at all, the newest few kept, loaded anywhere.

    with Checkpoints(Path("checkpoints")) as checkpoints:
        progress = checkpoints.load(model, optimizer)          # None: begin at the beginning
        for step in ...:
            ...
            checkpoints.save(step, model, optimizer, {"step": step, "epoch": epoch})

Whatever the model is wrapped in (nothing, DDP or FSDP of lab.parallel, torch's DDP or fully_shard)
and whether the optimiser is a plain one or a ZeroRedundancyOptimizer, the checkpoint is the same,
and loads into any other of these, on any number of ranks, with every bit.

The parts: `checkpoint_places.py` and `checkpoint_state.py` say which rank holds what,
`checkpoint_chunks.py` how that is cut; `checkpoint_planners.py` and `checkpoint_storage.py` write
and read it; `checkpoint_manifest.py` says what has to be there, `checkpoint_folder.py` lets it
appear.
"""

import shutil
import sys
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
from lab.training import checkpoint_folder as folders
from lab.training.checkpoint_chunks import Chunks, shared_out
from lab.training.checkpoint_manifest import (
    BadCheckpointError,
    Manifest,
    check_file,
    described,
    read_manifest,
)
from lab.training.checkpoint_planners import State, packed
from lab.training.checkpoint_random import random_states, restore_random_states
from lab.training.checkpoint_ranks import Ranks
from lab.training.checkpoint_state import TrainingState
from lab.training.checkpoint_storage import read, write


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
        self._copies: dict[str, Chunks] = {}
        self._error: Exception | None = None

    def save(
        self, step: int, model: nn.Module, optimizer: Optimizer, progress: Mapping[str, Any]
    ) -> None:
        """Save the state after a step. A collective.

        Args:
            step: names the checkpoint. One of the same step is replaced.
            model: bare or wrapped. Its buffers are saved from rank 0.
            optimizer: of its parameters.
            progress: what else is needed to go on: plain data, equal on all ranks. Each rank's
                random states are saved as well.

        Raises:
            LabError: it could not be saved, or the one before it, if that was asynchronous. What
                was there before still is.
            ValueError: progress is not plain data.
        """
        self.finish()
        ranks = Ranks(self._ranks())
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
        where there are as many ranks as saved it.

        Args:
            model: the same model, wrapped in whatever.
            optimizer: of its parameters; None: the model is only to be used.

        Returns:
            Its progress; None where there is no checkpoint.

        Raises:
            LabError: it is of another model, none of those that are there is good, or the ranks do
                not share the folder.
        """
        self.finish()
        ranks = Ranks(self._ranks())
        names = ranks.of_first(self._names)
        for name in names:
            path = self.folder / name
            ranks.check_shared(path)
            try:
                manifest = _verified(path, ranks)
                return _load(path, manifest, TrainingState(model, optimizer), ranks)
            except BadCheckpointError as error:
                if ranks.rank == 0:
                    print(f"lab: {path} cannot be used: {error}", file=sys.stderr, flush=True)
        if names:
            raise LabError(
                f"none of the checkpoints in {self.folder} can be used, for the reasons above: "
                "choose another folder, or remove this one to begin at the beginning"
            )
        return None

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """`finish`, also when the training ended by an error: that error is the one to know."""
        with nullcontext() if kind is None else suppress(Exception):
            self.finish()

    def _ranks(self) -> dist.ProcessGroup | None:
        """A group that carries Python objects, and that no collective of the training is on."""
        if not dist.is_initialized():
            return None
        if not self.asynchronous and dist.get_backend() == "gloo":
            return dist.group.WORLD
        if self._group is None:
            self._group = dist.new_group(backend="gloo")
        return self._group

    def _names(self) -> list[str]:
        """Of the checkpoints, the last saved first."""
        folders.tidy(self.folder)
        return [found.path.name for found in folders.find_all(self.folder)]

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
        folders.tidy(self.folder)
        saved = folders.time_to_save(self.folder).isoformat(timespec="microseconds")
        return folders.begin(self.folder, step).name, saved


def _verified(path: Path, ranks: Ranks) -> Manifest:
    """The manifest of a checkpoint whose files are what they were. A collective.

    Raises:
        BadCheckpointError: they are not. The same on all ranks.
    """
    manifest, problem = None, None
    try:
        manifest = read_manifest(path)
        for name in list(manifest.files)[ranks.rank :: ranks.size]:  # each rank reads its part
            check_file(path, name, manifest.files[name])
    except BadCheckpointError as error:
        problem = str(error)
    for found in ranks.all(problem):
        if found is not None:
            raise BadCheckpointError(found)
    assert manifest is not None
    return manifest


def _load(path: Path, manifest: Manifest, training: TrainingState, ranks: Ranks) -> dict[str, Any]:
    difference = training.difference(manifest)
    if difference is not None:
        raise LabError(f"{path} is of another model: {difference}")
    filled = {**training.targets(manifest), "progress": None}
    random_name = f"random.{ranks.rank}"
    if manifest.world_size == ranks.size:
        filled[random_name] = None
    read(filled, path, manifest, ranks.group)
    training.take(filled, manifest)
    if random_name in filled:
        restore_random_states(filled[random_name])
    progress: dict[str, Any] = filled["progress"]
    return progress
