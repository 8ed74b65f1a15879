"""Kill saves at every boundary there is, and see what is left.

    python -m tests.training.killed_saves FOLDER new again writes

The killed process is a fork of this one, so that a kill costs no import of torch. Boundaries are

- each call that changes names, and each fsync: an audit hook sends SIGKILL just before;
- bytes: beyond a limit on the size of files, the kernel itself kills the process in the midst of
  a write, and a part of the bytes is there.
"""

import os
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from lab.training.checkpoints import Checkpoints
from lab.training.checkpoints.folder import find_all
from lab.training.checkpoints.manifest import check_file
from tests.training.checkpointed import Training, seed_by_rank

NAMING = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.scandir")
NEVER = 10**9


class Killer:
    """Ends this process just before the n-th boundary; counts them if there are fewer."""

    def __init__(self, folder: Path, at: int) -> None:
        self.folder, self.at, self.count = folder, at, 0
        sys.addaudithook(self._saw)
        fsync = os.fsync

        def counted(number: Any) -> None:
            self._boundary()
            fsync(number)

        os.fsync = counted  # type: ignore[assignment]  # it is called with a number alone

    def _saw(self, event: str, arguments: tuple[Any, ...]) -> None:
        writing = event == "open" and isinstance(arguments[1], str) and "r" not in arguments[1]
        if writing or event in NAMING:
            path = Path(str(arguments[0]))
            if path.is_relative_to(self.folder) or not path.is_absolute():  # below an open folder
                self._boundary()

    def _boundary(self) -> None:
        self.count += 1
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def started(work: Callable[[], None]) -> int:
    """A fork of this process that does the work: its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - a fork must not go on as the test
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    return pid


def forked(work: Callable[[], None]) -> int:
    """The wait status of such a process."""
    return os.waitpid(started(work), 0)[1]


def trained(step: int, kind: str = "none") -> Training:
    """After so many steps: the same in every process."""
    training = Training(kind)
    seed_by_rank()
    for _ in range(step):
        training.step()
    return training


def save(folder: Path, step: int, *, kind: str = "none", asynchronous: bool = False) -> None:
    """The checkpoint after so many steps. Two stay."""
    training = trained(step, kind)
    checkpoints = Checkpoints(folder, keep=2, asynchronous=asynchronous)
    checkpoints.save(step, training.model, training.optimizer, {"step": step})
    checkpoints.finish()


def check(folder: Path, allowed: tuple[int, ...], *, kind: str = "none") -> int:
    """Go on after a kill: the step that is loaded is one of these, and its values are right."""
    good = [found for found in find_all(folder) if found.problem is None]
    assert len(good) >= 2, [found.path.name for found in good]
    for found in good:
        assert found.manifest is not None
        for name, entry in found.manifest.files.items():
            check_file(found.path, name, entry)
    training = Training("none", seed=9)
    checkpoints = Checkpoints(folder, keep=2)
    progress = checkpoints.load(training.model, training.optimizer)
    assert progress is not None
    step: int = progress["step"]
    assert step in allowed, step
    if kind == "none":
        expected = trained(step).model.state_dict()
        found_state = training.model.state_dict()
        assert all(torch.equal(value, found_state[name]) for name, value in expected.items())
    checkpoints.save(9, training.model, training.optimizer, {"step": 9})
    checkpoints.close()
    names = sorted(path.name for path in folder.iterdir())
    assert len(names) == 2, names
    assert names[1] == "step-00000009", names
    return step


def kill_everywhere(base: Path, step: int, *, asynchronous: bool = False) -> int:
    """Kill the save of a step at every boundary. How many there were.

    Args:
        base: holds checkpoints of steps 1 and 2.
        step: 3: a new one, by which that of step 1 has to go. 2: it takes the other's place.
        asynchronous: whether a thread writes.
    """
    folder = base.with_name("killed")
    steps: list[int] = []
    at, status = 0, signal.SIGKILL.value
    while status == signal.SIGKILL.value:
        at += 1
        fresh(base, folder)

        def work(at: int = at) -> None:
            Killer(folder, at)
            save(folder, step, asynchronous=asynchronous)

        status = forked(work)
        assert status in (0, signal.SIGKILL.value), status
        steps.append(check(folder, (2, step)))
    assert steps == sorted(steps), "from one boundary on the new one is there"
    assert (steps[0], steps[-1]) == (2, step)
    return at - 1


def kill_in_writes(base: Path, parts: int) -> int:
    """Kill the save of step 3 in the midst of writes. How often it was killed."""
    folder = base.with_name("killed")
    fresh(base, folder)
    assert forked(lambda: save(folder, 3)) == 0
    most = max(path.stat().st_size for path in (folder / "step-00000003").iterdir())
    killed = 0
    for part in range(parts):
        fresh(base, folder)
        limit = most * part // parts

        def work(limit: int = limit) -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # Python ignores it
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
            save(folder, 3)

        assert forked(work) & 0x7F == signal.SIGXFSZ
        assert check(folder, (2,)) == 2
        killed += 1
    return killed


def kill_ranks(base: Path, every: int) -> int:
    """Kill one of two ranks at boundaries of its own. How often one was killed."""
    killed = 0
    for victim in (0, 1):
        at, died = 1, True
        while died:
            folder = base.with_name("killed")
            fresh(base, folder)
            died = _two_ranks(folder, victim, at)
            check(folder, (2, 3), kind="ddp")
            killed += died
            at += every
    return killed


def _two_ranks(folder: Path, victim: int, at: int) -> bool:
    """Whether the victim was killed."""
    meeting = folder.with_name("meeting")
    meeting.unlink(missing_ok=True)

    def work(rank: int) -> None:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{meeting}",
            rank=rank,
            world_size=2,
            timeout=timedelta(seconds=60),
        )
        if rank == victim:
            Killer(folder, at)
        save(folder, 3, kind="ddp")

    pids = [started(partial(work, rank)) for rank in (0, 1)]
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    return os.WIFSIGNALED(statuses[victim])


def fresh(base: Path, folder: Path) -> None:
    """A copy of the folder with the checkpoints of before."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(base, folder)


def main(folder: Path, *ways: str) -> None:
    """Kill in these ways, and print how often in each."""
    torch.set_num_threads(1)
    base = folder / "base"
    for step in (1, 2):
        assert forked(partial(save, base, step)) == 0
    kills = {
        "new": lambda: kill_everywhere(base, 3),
        "again": lambda: kill_everywhere(base, 2),
        "behind": lambda: kill_everywhere(base, 3, asynchronous=True),
        "writes": lambda: kill_in_writes(base, 12),
        "ranks": lambda: kill_ranks(base, 7),
        "ranks-everywhere": lambda: kill_ranks(base, 1),
    }
    for way in ways:
        print(kills[way]())


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
