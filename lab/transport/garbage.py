"""`lab gc`: what nobody will remove any more, and its removal."""

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from lab.channel import Progress
from lab.errors import LabError
from lab.node.leftovers import Labelled, end, labelled
from lab.topology import SLURM_LAB, SSH_LAB
from lab.transport.containers import PYTHON
from lab.transport.engine import EngineStoppedError, connect
from lab.transport.exec_channel import DockerChannel
from lab.transport.image import remove_image, stale_images
from lab.transport.labs import Lab, LabNode, find_labs, remove_lab, workdir_lock
from lab.transport.making import at_once
from lab.transport.run_state import run_state

if TYPE_CHECKING:
    from docker import DockerClient

REHEARSALS = (SLURM_LAB, SSH_LAB)
ROUNDS = 3
"""How often to look again for what was started while others were being ended."""


def end_leftovers(dry_run: bool = False, *, run: Path | None = None) -> list[str]:
    """End this user's processes on this machine whose run is over; one line for each.

    With `run`, only what is left of the run with that directory.
    """

    def find() -> list[Labelled]:
        over = _of_runs_that_are_over(labelled())
        return [process for process in over if run is None or Path(process.run_dir) == run]

    return _end_all(find, end, dry_run)


def collect_garbage(
    here: Path,
    dry_run: bool = False,
    progress: Progress = lambda _line: None,
    *,
    images: bool = False,
) -> list[str]:
    """Remove what nobody will remove any more; returns one line for each thing, with the reason.

    That is: labs whose run has lost its controller or whose working directory has gone, and one
    that is from `here` of which a part is missing or does not run, unless somebody is bringing it
    up just now; on the nodes of the others, processes of runs that are over; and where `images` are
    asked for, those of nodes that the present code is not and no container uses (another checkout
    may want them again).

    Raises:
        LabError: no engine answers.
    """
    client = connect()
    removed = []
    for lab in find_labs(client):
        with workdir_lock(lab.workdir, wait=False) as locked:
            reason = why_garbage(lab, here) if locked else None
            if reason is not None:
                removed.append(f"lab {lab.id} of {lab.workdir}: {reason}")
                progress(removed[-1])
                if not dry_run:
                    try:
                        remove_lab(client, lab)
                    except LabError as error:  # the others can be removed all the same
                        removed[-1] = f"nothing: {error}"
        # Where one rehearses, nodes have no lab in them; what ends there is Slurm's and sshd's.
        if reason is None and lab.ours and lab.topology not in REHEARSALS:
            removed += _end_leftovers_on(client, lab.nodes, dry_run)
    for tag in stale_images(client) if images else ():
        removed.append(f"image {tag}: of other code than the present, or of packages for a run")
        progress(removed[-1])
        if not dry_run:
            remove_image(client, tag)
    return removed


def why_garbage(lab: Lab, here: Path) -> str | None:
    """Why nobody will remove a lab any more; None: somebody may.

    Of a lab that is not from `here` a node may have been stopped on purpose, to see what happens.
    """
    if lab.ours:
        with contextlib.suppress(PermissionError):  # another user's: not ours to judge
            if not lab.workdir.exists():
                return f"its working directory {lab.workdir} has gone"
        if lab.run_state() == "died":
            return f"the controller of its run {lab.run} has gone"
    rehearses = lab.topology in REHEARSALS and lab.nodes  # the same, here as well
    if lab.workdir != here.resolve() or rehearses or lab.complete:
        return None
    return f"only {lab.state}" if lab.run_state() != "running" else None
    return None


def _of_runs_that_are_over(
    processes: Sequence[Labelled], or_removed: bool = False
) -> list[Labelled]:
    over = []
    for process in processes:
        run = Path(process.run_dir)
        with contextlib.suppress(PermissionError):  # another user's: not ours to judge
            if run_state(run) in ("died", "finished") or (or_removed and not run.exists()):
                over.append(process)
    return over


def _end_all(
    find: Callable[[], list[Labelled]], end_them: Callable[[list[Labelled]], None], dry_run: bool
) -> list[str]:
    told: dict[Labelled, str] = {}
    for _ in range(ROUNDS):
        found = find()
        for one in found:
            where = f" on {one.node}" if one.node else ""
            run = Path(one.run_dir).name
            told[one] = f"process {one.pid}{where}: {one.command}, of run {run}, which is over"
        if dry_run or not found:
            break
        end_them(found)
    return list(told.values())


def _end_leftovers_on(client: "DockerClient", nodes: Sequence[LabNode], dry_run: bool) -> list[str]:
    """What `end_leftovers` does, in containers, each of which sees only its own processes."""
    lines = at_once([partial(_end_leftovers_in, client, n.container_id, dry_run) for n in nodes])
    return list(chain.from_iterable(lines))


def _end_leftovers_in(client: "DockerClient", container: str, dry_run: bool) -> list[str]:
    def call(*arguments: str, stdin: str = "") -> str:
        argv = [PYTHON, "-P", "-m", "lab.node.leftovers", *arguments]
        channel = DockerChannel(client, container, argv, cwd="/", env={}, tty=False)
        channel.send(stdin.encode())
        channel.close_stdin()
        said = b"".join(data for stream, data in channel.output() if stream == "out")
        channel.wait()
        channel.close()
        return said.decode()

    def find() -> list[Labelled]:
        found = [Labelled(**fields) for fields in json.loads(call())]
        # Nodes see our folders at the same path; on this machine others may see other ones.
        return _of_runs_that_are_over(found, or_removed=True)

    def end_them(processes: list[Labelled]) -> None:
        call("--end", stdin=json.dumps([asdict(process) for process in processes]))

    try:
        return _end_all(find, end_them, dry_run)
    except EngineStoppedError:
        raise
    except (LabError, ValueError, TypeError):  # it goes down, or is of other code than ours
        return []
