"""Where a training begins: at a checkpoint that is asked for, or at the beginning."""

import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from lab.errors import LabError, UsageError
from lab.training.checkpoints import Checkpoints
from lab.training.checkpoints.files import atomic_file
from lab.training.checkpoints.folder import find_all
from lab.training.checkpoints.ranks import NotSharedError
from lab.training.options import Options
from lab.training.preemption import begun_again, job
from lab.training.world import World

NAME = ".training.job"
"""A file beside the checkpoints: the job whose they are, where it has a name."""
CURE = "name one that they share by --checkpoints FOLDER"
PATIENCE = 120.0
"""Seconds which the lock of a job may outlast it, if its host has died: NFS has it for 90."""


def started_before(world: World) -> list[bool]:
    """As `begun_again`, on any rank: torchrun counts on each node by itself. A collective."""
    own = map(float, begun_again(is_main=world.is_main))
    return [any(each) for each in zip(*world.gather(*own), strict=True)]


def claim(
    checkpoints: Checkpoints, options: Options, world: World, again: Sequence[bool]
) -> Options:
    """Keep other trainings from saving where this one does. A collective.

    Args:
        checkpoints: of this training.
        options: how often it saves, and so on.
        world: the ranks.
        again: see `started_before`.

    Returns:
        The options; with save_every 0 where nodes share no folder, as hosts over SSH may not, and
        nobody has asked for checkpoints: that is said, and all can be trained anywhere.

    Raises:
        LabError: another training saves there, or a rank cannot write there.
    """
    if options.saves_every:
        try:
            checkpoints.claim(patience=PATIENCE if any(again) else 0.0)
        except NotSharedError as error:
            if options.needs_checkpoints:
                raise LabError(f"{error}: {CURE}, or train without any by --save-every 0") from None
            _say(world, f"{error}: trains without any. To have some, {CURE}")
            return replace(options, save_every=0)
    return options


def source(
    checkpoints: Checkpoints, options: Options, world: World, again: Sequence[bool]
) -> Checkpoints | None:
    """Those to go on from; None: begin at the beginning. A collective.

    A training that begins moves an earlier one's out of its way. From now on none but this training
    saves in the folder, if it saves at all.

    Args:
        checkpoints: of this training, claimed if it saves.
        options: resume and so on.
        world: the ranks.
        again: see `started_before`.

    Raises:
        UsageError: to resume was asked for, and there is nothing.
        LabError: the checkpoints of an earlier training cannot be moved.
    """
    for_all = checkpoints.ranks().of_first
    # Who was started before may have failed before it came here: what is there is another's then.
    begun = any(again) and for_all(lambda: _is_own(checkpoints.folder, again))
    if options.saves_every:
        if not (options.resume or begun) and (moved := checkpoints.set_aside()) is not None:
            _say(world, f"the checkpoints of an earlier training are in {moved} now")
        for_all(lambda: _sign(checkpoints.folder))
    if not (options.resume or begun):
        return None
    if for_all(lambda: bool(find_all(checkpoints.folder))):
        return checkpoints
    searched = f"{checkpoints.folder}"
    if options.resume and options.checkpoints is None and (run := os.environ.get("LAB_RUN_DIR")):
        inside = checkpoints.folder.relative_to(run)
        earlier = for_all(lambda: _last_run_with(inside, Path(run)))
        if earlier is not None:
            return Checkpoints(Path(run).parent / earlier / inside)
        searched += f", nor in {inside} of an earlier run"
    if options.resume is True:
        raise UsageError(
            f"--resume: there is no checkpoint in {searched}. Name their folder by --checkpoints, "
            "or leave --resume out; --resume auto begins at the beginning then"
        )
    _say(world, f"there is no checkpoint in {searched}: begins at the beginning")
    return None


def _last_run_with(inside: Path, run: Path) -> str | None:
    """The name of the other run beside this that has saved last."""
    last = [
        (found[0].saved, other.name)
        for other in run.parent.iterdir()
        if other.name != run.name and (found := find_all(other / inside))
    ]
    return max(last)[1] if last else None


def _is_own(folder: Path, again: Sequence[bool]) -> bool:
    """Whether checkpoints in a folder, if any, are of this job, by those that started it again."""
    if not find_all(folder):
        return True
    saved = [""] * len(again)
    with suppress(OSError, ValueError):
        saved = json.loads((folder / NAME).read_text())
    names = zip(again, saved, job(), strict=False)  # a newer lab may know more of them
    return any(started and theirs == ours for started, theirs, ours in names)


def _sign(folder: Path) -> None:
    """Say that checkpoints in a folder are of this job from now on."""
    try:
        (folder / NAME).unlink(missing_ok=True)
        if any(job()):
            with atomic_file(folder / NAME) as file:
                file.write(json.dumps(job()).encode())
    except OSError as error:
        raise LabError(f"{folder} cannot be written: {error.strerror}") from error


def _say(world: World, line: str) -> None:
    if world.is_main:
        print(line, file=sys.stderr, flush=True)
