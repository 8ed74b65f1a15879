"""One training saves in a folder at a time, and whoever reads in it changes nothing."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from lab.errors import LabError
from lab.training.checkpoints import Checkpoints, loading
from lab.training.checkpoints.folder import find_all
from lab.training.checkpoints.lock import NAME as LOCK
from lab.training.checkpoints.manifest import BadCheckpointError, read_manifest
from tests.ranks import RankPool
from tests.training.checkpointed import Training, save

REFUSED = "another training saves in"
HOLDER = """
import sys, time
from pathlib import Path
from lab.training.checkpoints.lock import FolderLock
lock = FolderLock(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With checkpoints of steps 1 and 2."""
    save("none", tmp_path / "checkpoints")
    return tmp_path / "checkpoints"


@pytest.fixture
def other(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that saves there; it ends with its stdin."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def load(folder: Path) -> dict[str, Any] | None:
    """Into a new training."""
    training = Training("none", seed=3)
    return Checkpoints(folder).load(training.model, training.optimizer)


def names(folder: Path) -> list[str]:
    """Of everything in it."""
    return sorted(path.name for path in folder.iterdir())


def test_a_second_training_is_refused_and_harms_nothing(
    folder: Path, other: subprocess.Popen[str]
) -> None:
    under_way = folder / ".step-00000003.0123abcd.new"
    under_way.mkdir()
    before = names(folder)
    training = Training("none")
    mine = Checkpoints(folder)
    calls: tuple[Callable[[], object], ...] = (
        mine.claim,
        mine.set_aside,
        lambda: mine.save(3, training.model, training.optimizer, {}),
    )
    for call in calls:
        with pytest.raises(LabError, match=REFUSED) as caught:
            call()
        assert f"process {other.pid} on " in str(caught.value)
        assert "choose another folder" in str(caught.value)
    assert load(folder) == {"step": 2}, "to read is allowed"
    assert names(folder) == before


def test_a_killed_training_leaves_no_lock(folder: Path, other: subprocess.Popen[str]) -> None:
    other.send_signal(signal.SIGKILL)
    other.wait()
    with Checkpoints(folder) as checkpoints:
        checkpoints.claim()
    assert LOCK not in names(folder)


def test_the_end_of_another_training_can_be_waited_for(
    folder: Path, other: subprocess.Popen[str]
) -> None:
    pid = os.fork()  # ends it when we are waiting, or a little before
    if pid == 0:
        os.kill(other.pid, signal.SIGKILL)
        os._exit(0)
    Checkpoints(folder).claim(patience=300)
    os.waitpid(pid, 0)


def test_a_process_that_the_training_started_does_not_keep_the_lock(folder: Path) -> None:
    checkpoints = Checkpoints(folder)
    checkpoints.claim()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:  # as a loader's worker, which may outlive a training that was killed
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    try:
        checkpoints.close()
        Checkpoints(folder).claim()
    finally:
        os.close(writer)
        os.waitpid(pid, 0)
        os.close(reader)


def test_two_of_one_process_are_two_trainings_until_one_is_closed(folder: Path) -> None:
    first, second = Checkpoints(folder), Checkpoints(folder)
    first.claim()
    first.claim()
    with pytest.raises(LabError, match=REFUSED):
        second.claim()
    first.close()
    second.claim()


def test_all_ranks_are_refused(ranks: RankPool, folder: Path) -> None:
    first = Checkpoints(folder)
    first.claim()
    for message in ranks.run(2, _refused, folder):
        assert REFUSED in message
    first.close()
    assert ranks.run(2, _claimed, folder) == [True, True]


def _refused(folder: Path) -> str:
    with pytest.raises(LabError) as caught:
        Checkpoints(folder).claim()
    return str(caught.value)


def _claimed(folder: Path) -> bool:
    with Checkpoints(folder) as checkpoints:
        checkpoints.claim()
        held = (folder / LOCK).exists()
        dist.barrier()
        return held


def test_what_a_crash_left_is_removed_by_who_saves_next_alone(folder: Path) -> None:
    (folder / ".step-00000003.0123abcd.new").mkdir()
    (folder / "step-00000002").rename(folder / ".step-00000002.0123abcd.old")
    left = names(folder)
    assert [found.step for found in find_all(folder)] == [2, 1]
    assert load(folder) == {"step": 2}, "it was to be replaced, and is whole"
    assert names(folder) == left
    with Checkpoints(folder) as checkpoints:
        checkpoints.claim()
    assert names(folder) == ["step-00000001", "step-00000002"]


def test_one_that_is_being_replaced_is_there_once(folder: Path) -> None:
    shutil.copytree(folder / "step-00000002", folder / ".step-00000002.0123abcd.old")
    assert [found.path.name for found in find_all(folder)] == ["step-00000002", "step-00000001"]


def test_another_training_sets_them_aside(folder: Path) -> None:
    (folder / "step-by-step.md").touch()
    with Checkpoints(folder) as checkpoints:
        assert checkpoints.set_aside() == folder.with_name("checkpoints.1")
        assert checkpoints.set_aside() is None
    assert names(folder) == ["step-by-step.md"]
    assert names(folder.with_name("checkpoints.1")) == ["step-00000001", "step-00000002"]


def read_while(monkeypatch: pytest.MonkeyPatch, happens: Callable[[Path], None]) -> list[Path]:
    """Let something happen to each checkpoint whose manifest has just been read."""
    seen: list[Path] = []

    def then(path: Path) -> Any:
        manifest = read_manifest(path)
        seen.append(path)
        happens(path)
        return manifest

    monkeypatch.setattr(loading, "read_manifest", then)
    return seen


def test_a_reader_goes_on_with_the_next_when_a_training_removes_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def rotated(path: Path) -> None:
        if path.name == "step-00000002":
            save("none", folder, steps=3, keep=1)

    seen = read_while(monkeypatch, rotated)
    assert load(folder) == {"step": 3}
    assert [path.name for path in seen] == ["step-00000002", "step-00000003"]
    assert capsys.readouterr().err == "", "nothing was wrong"


def test_a_reader_takes_the_one_that_replaced_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    training = Training("none", seed=8)

    def replaced(path: Path) -> None:
        if len(seen) == 1:
            training.step()
            Checkpoints(folder).save(2, training.model, training.optimizer, {"again": True})

    seen = read_while(monkeypatch, replaced)
    assert load(folder) == {"again": True}
    assert capsys.readouterr().err == ""


def test_a_reader_that_is_always_too_late_gives_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = iter(range(3, 1000))

    def rotated(path: Path) -> None:
        path.rename(folder / f"step-{next(number):08d}")

    read_while(monkeypatch, rotated)
    with pytest.raises(LabError, match="removes its checkpoints sooner than they can be read"):
        load(folder)


def test_a_file_of_a_checkpoints_name_is_none(
    folder: Path, ranks: RankPool, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "step-00000077").touch()
    assert load(folder) == {"step": 2}
    assert "step-00000077 cannot be used: it is a file, and no folder" in capsys.readouterr().err
    assert ranks.run(2, _load_ddp, folder) == [{"step": 2}] * 2


def _load_ddp(folder: Path) -> Any:
    training = Training("ddp")
    return Checkpoints(folder).load(training.model, training.optimizer)


def test_a_link_to_nowhere_is_no_checkpoint(folder: Path) -> None:
    (folder / "step-00000077").symlink_to(folder / "nowhere")
    assert load(folder) == {"step": 2}


@pytest.mark.parametrize("kind", ["newer", "file", "link"])
def test_what_is_not_a_good_one_of_ours_is_never_replaced(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = folder / "step-00000003"
    if kind == "newer":
        taken.mkdir()
        (taken / "checkpoint.json").write_text('{"format": "lab.checkpoint", "version": 2}')
    elif kind == "file":
        taken.write_text("mine")
    else:
        taken.symlink_to("nowhere")
    save("none", folder, steps=3, keep=1)
    save("none", folder, steps=3, keep=1)
    assert load(folder) == {"step": 3}
    assert names(folder) == ["step-00000003", "step-00000003.1"]
    aside = folder / "step-00000003.1"
    if kind == "newer":
        assert '"version": 2' in (aside / "checkpoint.json").read_text()
    elif kind == "file":
        assert aside.read_text() == "mine"
    else:
        assert aside.is_symlink()
    assert f"makes room for the new one: it is {aside} now" in capsys.readouterr().err


def test_nodes_with_folders_of_their_own_do_not_mix_them_up(
    ranks: RankPool, tmp_path: Path
) -> None:
    """Of an earlier run: each has a checkpoint of that name, of another training."""
    assert all("they need one folder" in error for error in ranks.run(2, _load_apart, tmp_path))


def _load_apart(folder: Path) -> str:
    from lab.training.checkpoints.ranks import Ranks

    own = folder / str(dist.get_rank())
    training = Training("none", seed=dist.get_rank())
    with Checkpoints(own) as checkpoints:
        checkpoints.ranks = lambda: Ranks(None)  # type: ignore[method-assign]  # each alone
        checkpoints.save(1, training.model, training.optimizer, {})
    with pytest.raises(BadCheckpointError) as caught:
        loading._verified(own / "step-00000001", Ranks(dist.group.WORLD))
    return str(caught.value)
