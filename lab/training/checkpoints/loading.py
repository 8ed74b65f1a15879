"""From a folder of checkpoints into a model and an optimiser. Nothing is changed in the folder."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from lab.errors import LabError
from lab.training.checkpoints.folder import find_all
from lab.training.checkpoints.manifest import (
    BadCheckpointError,
    Manifest,
    check_file,
    printable,
    read_manifest,
)
from lab.training.checkpoints.random_states import restore_random_states
from lab.training.checkpoints.ranks import Ranks
from lab.training.checkpoints.state import TrainingState
from lab.training.checkpoints.storage import read

MOST_REMOVED = 20
"""How many may be removed while they are read, before that is given up."""


def load_last(
    folder: Path, model: nn.Module, optimizer: Optimizer | None, ranks: Ranks
) -> tuple[dict[str, Any], Path] | None:
    """See `Checkpoints.load`. A collective.

    Returns:
        The progress, and the checkpoint; None where there is none.
    """
    bad: list[str] = []
    removed = 0
    while True:
        found = ranks.of_first(lambda: _last_but(folder, bad))
        if found is None:
            break
        name, identity = found
        path = folder / name  # nodes may have the folder at different places
        ranks.check_shared(path)
        try:
            manifest = _verified(path, ranks)
            return _load(path, manifest, TrainingState(model, optimizer), ranks), path
        except BadCheckpointError as error:
            # The training that saves here may have removed it: then it has later ones.
            if identity is None or ranks.of_first(partial(_identity, path)) != identity:
                removed += 1
                if removed < MOST_REMOVED:
                    continue
                raise LabError(
                    f"the training that saves in {folder} removes its checkpoints sooner than they "
                    "can be read: have it --keep more, or copy one"
                ) from error
            if ranks.rank == 0:
                print(f"lab: {path} cannot be used: {error}", file=sys.stderr, flush=True)
            bad.append(name)
    if bad:
        raise LabError(
            f"none of the checkpoints in {folder} can be used, for the reasons above: "
            "choose another folder, or remove this one to begin at the beginning"
        )
    return None


def _last_but(folder: Path, bad: Sequence[str]) -> tuple[str, int | None] | None:
    """The name of the last saved one that is none of these, and its identity."""
    for found in find_all(folder):
        if found.path.name not in bad:
            return found.path.name, _identity(found.path)
    return None


def _identity(path: Path) -> int | None:
    """Another number where there is another under this name; None where there is none any more."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _verified(path: Path, ranks: Ranks) -> Manifest:
    """The manifest of a checkpoint whose files are what they were. A collective.

    Raises:
        BadCheckpointError: they are not. The same on all ranks.
    """
    manifest = ranks.of_each(lambda: read_manifest(path))
    if any(files != manifest.files for files in ranks.all(manifest.files)):
        raise BadCheckpointError("the nodes have different ones of that name: they need one folder")

    def check() -> None:
        for name in list(manifest.files)[ranks.rank :: ranks.size]:  # each rank reads its part
            check_file(path, name, manifest.files[name])

    ranks.of_each(check)
    return manifest


def _load(path: Path, manifest: Manifest, training: TrainingState, ranks: Ranks) -> dict[str, Any]:
    difference = training.difference(manifest)
    if difference is not None:
        raise LabError(f"{path} is of another model: {difference}")
    random_name = f"random.{ranks.rank}"

    def targets() -> dict[str, Any]:
        with _in_words():
            return {**training.targets(manifest), "progress": None}

    def check() -> None:
        with _in_words():
            training.check_groups(first["groups"])

    def take() -> None:
        with _in_words():
            if not isinstance(filled["progress"], dict):
                raise TypeError("its progress is no dict")
            training.take(filled, manifest)
            if random_name in filled:
                restore_random_states(filled[random_name])

    filled = ranks.of_each(targets)
    if "groups" in filled:  # what is refused must leave the model as it was
        first: dict[str, Any] = {"groups": None}
        read(first, path, manifest, ranks.group)
        ranks.of_each(check)
    if manifest.world_size == ranks.size:
        filled[random_name] = None
    read(filled, path, manifest, ranks.group)
    ranks.of_each(take)
    progress: dict[str, Any] = filled["progress"]
    return progress


@contextmanager
def _in_words() -> Iterator[None]:
    """What a checkpoint holds may be anything, and so may be what is raised."""
    try:
        yield
    except LabError:
        raise
    except Exception as error:
        raise BadCheckpointError(
            f"what it holds does not fit: {type(error).__name__}: {printable(str(error)[:200])}"
        ) from error
