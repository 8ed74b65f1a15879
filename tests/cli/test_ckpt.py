"""`lab ckpt` says what is in a folder of checkpoints, and what is wrong with it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.training.checkpoints import Checkpoints, manifest
from lab.training.checkpoints.manifest import NAME, _checksum
from tests.conftest import Lab

STEP_2 = "step-00000002"


@pytest.fixture
def folder(lab: Lab) -> Path:
    """With checkpoints of steps 1 and 2, in the folder where lab is called."""
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    checkpoints = Checkpoints(lab.cwd / "checkpoints" / "net")
    for step in (1, 2):
        checkpoints.save(step, model, optimizer, {"step": step, "loss": float("inf")})
    return checkpoints.folder


def cut(folder: Path) -> None:
    """Damage the last one."""
    os.truncate(folder / STEP_2 / "__0_0.distcp", 100)


@pytest.mark.parametrize("place", [(), ("checkpoints",), ("checkpoints/net",), (".",)])
def test_ls(lab: Lab, folder: Path, place: tuple[str, ...]) -> None:
    done = lab("ckpt", "ls", *place)
    assert done.returncode == 0
    head, *rows = done.stdout.splitlines()
    assert head.split() == ["STEP", "SAVED", "RANKS", "SIZE", "STATE", "CHECKPOINT"]
    assert [row.split()[0] for row in rows] == ["2", "1"], "the last saved first"
    assert f"checkpoints/net/{STEP_2}" in rows[0]
    assert "whole" in rows[0]


def test_ls_names_what_is_wrong(lab: Lab, folder: Path) -> None:
    cut(folder)
    rows = json.loads(lab("ckpt", "ls", "--json").stdout)
    assert [row["step"] for row in rows] == [2, 1]
    assert "its __0_0.distcp is cut off: 100 of" in rows[0]["problem"]
    assert rows[1]["problem"] is None
    assert rows[1]["progress"] == {"step": 1, "loss": "inf"}, "JSON has no infinity"
    assert (rows[1]["world_size"], rows[1]["optimizer"]) == (1, "Adam")


def test_show_the_last_saved_or_the_one_that_is_named(lab: Lab, folder: Path) -> None:
    done = lab("ckpt", "show")
    assert done.returncode == 0
    assert "step      2" in done.stdout
    assert "by 1 rank, torch" in done.stdout
    assert "8 numbers in 2 tensors" in done.stdout
    assert [line.split() for line in done.stdout.splitlines()[-2:]] == [
        ["bias", "float32", "[2]"],
        ["weight", "float32", "[2,", "3]"],
    ]
    shown = json.loads(lab("ckpt", "show", str(folder / "step-00000001"), "--json").stdout)
    assert shown["step"] == 1
    assert shown["tensors"]["model.weight"]["shape"] == [2, 3]


def test_show_what_cannot_be_read(lab: Lab, folder: Path) -> None:
    cut(folder)
    done = lab("ckpt", "show")
    assert done.returncode == 2
    assert "is cut off" in done.stderr


def test_verify_reads_everything(lab: Lab, folder: Path) -> None:
    assert lab("ckpt", "verify").stdout.splitlines() == [
        f"checkpoints/net/{STEP_2}: good",
        "checkpoints/net/step-00000001: good",
    ]
    data = folder / STEP_2 / "__0_0.distcp"
    data.write_bytes(data.read_bytes()[:-1] + b"?")  # as long as before
    assert "whole" in lab("ckpt", "ls", str(folder / STEP_2)).stdout
    done = lab("ckpt", "verify")
    assert done.returncode == 1
    assert f"{STEP_2}: its __0_0.distcp was changed: the checksum is another" in done.stdout
    assert lab("ckpt", "verify", str(folder / "step-00000001")).returncode == 0
    rows = json.loads(lab("ckpt", "verify", "--json").stdout)
    assert [row["problem"] is None for row in rows] == [False, True]


def forge(checkpoint: Path, **change: object) -> None:
    """Another manifest, with a checksum that is right: it keeps nobody away who may write there."""
    content = json.loads((checkpoint / NAME).read_text())
    del content["sha256"]
    content |= change
    text = json.dumps({**content, "sha256": _checksum(content)})
    (checkpoint / NAME).write_text(text)


def test_what_a_manifest_says_cannot_command_the_terminal(lab: Lab, folder: Path) -> None:
    forge(folder / STEP_2, optimizer="\x1b[31mAdam\n", progress={"\x1b]0;title\x07": 1})
    forge(folder / "step-00000001", objects={"\x1b[2J": {"file": "\x1b[2J"}})
    for command in ("ls", "show", "verify"):
        for more in ((), ("--json",)):
            done = lab("ckpt", command, *more)
            assert "\x1b" not in done.stdout + done.stderr
            assert "Traceback" not in done.stderr
    done = lab("ckpt", "show", str(folder / "step-00000001"))
    assert done.returncode == 2
    assert "its checkpoint.json is damaged" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_is_no_folder_has_a_checkpoints_name(lab: Lab, folder: Path) -> None:
    (folder / "step-00000077").touch()
    (folder / "step-00000078").symlink_to("nowhere")
    rows = json.loads(lab("ckpt", "ls", "--json").stdout)
    assert [row["step"] for row in rows if row["problem"] is None] == [2, 1]
    (other,) = [row for row in rows if row["problem"]]
    assert other["problem"] == "it is a file, and no folder"
    done = lab("ckpt", "verify")
    assert done.returncode == 1
    assert "step-00000077: it is a file, and no folder" in done.stdout


def test_to_look_changes_nothing_though_a_training_is_saving(lab: Lab, folder: Path) -> None:
    (folder / ".step-00000003.0123abcd.new").mkdir()
    (folder / STEP_2).rename(folder / f".{STEP_2}.0123abcd.old")
    before = sorted(path.name for path in folder.iterdir())
    for command in ("ls", "show", "verify"):
        done = lab("ckpt", command)
        assert done.returncode == 0
        assert f"{STEP_2}.0123abcd.old" in done.stdout, "it is about to be replaced, and whole"
    assert sorted(path.name for path in folder.iterdir()) == before


def test_one_that_is_removed_while_it_is_read_is_not_a_bad_one(
    lab: Lab, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from lab.cli import ckpt

    read = manifest.check_file

    def removed(path: Path, *arguments: Any, **options: Any) -> None:
        if path.name == STEP_2 and options.get("read", True):
            shutil.rmtree(path)
        read(path, *arguments, **options)

    monkeypatch.setattr(manifest, "check_file", removed)
    ckpt.verify(str(folder))
    assert [line.partition(": ")[2] for line in capsys.readouterr().out.splitlines()] == [
        "removed while it was read",
        "good",
    ]


def test_where_there_are_none(lab: Lab) -> None:
    done = lab("ckpt", "ls")
    assert done.returncode == 2
    assert "no checkpoints in checkpoints, nor in a run of this folder" in done.stderr
    (lab.cwd / "empty").mkdir()
    done = lab("ckpt", "verify", "empty")
    assert done.returncode == 2
    assert done.stderr == "lab: error: there are no checkpoints in empty\n"
    (lab.cwd / "empty" / "model.pt").write_text("of torch.save")
    others = "empty (the files in empty are none that lab.training has saved)\n"
    assert lab("ckpt", "ls", "empty").stderr.endswith(others)
    for words in (["ls"], ["show"], ["verify"]):
        done = lab("ckpt", *words, "nowhere")
        assert done.returncode == 2
        assert done.stderr == (
            "lab: error: nowhere is no folder here, and in no run's id; lab ps shows the runs\n"
        )


def test_those_of_a_run(lab: Lab, folder: Path) -> None:
    script = lab.script("import os, shutil\nshutil.move('saved', os.environ['LAB_RUN_DIR'])\n")
    folder.parent.rename(lab.cwd / "saved")
    job = lab("run", "--on", "local", "--nodes", "1", script)
    assert job.returncode == 0, job.stderr
    (run,) = lab.runs()
    (run / "saved").rename(run / "checkpoints")
    for place in ((), (run.name,), (str(run),)):
        rows = json.loads(lab("ckpt", "ls", *place, "--json").stdout)
        assert [Path(row["path"]).parent.name for row in rows] == ["net", "net"]
