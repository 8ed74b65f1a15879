"""The Wine job: alone, among ranks, under torchrun, and given nonsense."""

import contextlib
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from lab.training.wine import main
from tests.ranks import RankPool

Printed = tuple[int, list[str], bool]


def train(folder: Path, *arguments: str) -> Printed:
    """Exit code, lines printed, and whether a process group is left."""
    os.environ.pop("LAB_RUN_DIR", None)
    os.chdir(folder)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        code = main(arguments)
    return code, printed.getvalue().splitlines(), dist.is_initialized()


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LAB_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def rows(lines: list[str]) -> list[tuple[float, float]]:
    """(loss, accuracy) of each epoch."""
    assert lines[1].split() == ["epoch", "loss", "accuracy", "samples/s"]
    table = [line.split() for line in lines[2:]]
    assert [row[0] for row in table] == [str(number + 1) for number in range(len(table))]
    return [(float(loss), float(accuracy)) for _, loss, accuracy, _ in table]


def test_one_process_learns(alone: Path) -> None:
    code, lines, group = train(alone)
    assert (code, group) == (0, False)
    assert "142 samples to train on, 36 held out, 1 x batch 32, one process" in lines[0]
    table = rows(lines)
    assert len(table) == 20
    assert table[-1][0] < 0.3 < 1 < table[0][0]
    assert table[-1][1] > 0.9


def test_no_checkpoint_if_none_is_wanted(alone: Path) -> None:
    train(alone, "--epochs", "1", "--save-every", "0")
    assert list(alone.iterdir()) == []


def test_ddp_over_one_rank_is_the_plain_process(alone: Path) -> None:
    plain, ours, torchs, minimal = (
        rows(train(alone, "--epochs", "2", *extra)[1])
        for extra in (
            (),
            ("--parallel", "ddp"),
            ("--parallel", "ddp", "--impl", "torch"),
            ("--parallel", "ddp", "--impl", "minimal"),
        )
    )
    assert plain == ours == torchs == minimal


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_train_one_model_and_rank_0_speaks(
    ranks: RankPool, tmp_path: Path, world_size: int
) -> None:
    ours = ranks.run(world_size, train, tmp_path, "--epochs", "3")
    torchs = ranks.run(world_size, train, tmp_path, "--epochs", "3", "--impl", "torch")
    assert [code for code, _, _ in ours] == [0] * world_size
    assert all(lines == [] for _, lines, _ in ours[1:])
    assert len(rows(ours[0][1])) == 3
    assert rows(ours[0][1]) == rows(torchs[0][1])
    kept = sorted(folder.name for folder in (tmp_path / "checkpoints").iterdir())
    assert kept == ["wine", "wine.1"], "the second training put the first one's aside"


def test_none_on_several_ranks_is_refused(ranks: RankPool, tmp_path: Path) -> None:
    for code, lines, _ in ranks.run(2, train, tmp_path, "--parallel", "none"):
        assert (code, lines) == (2, [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--epochs 0", "argument --epochs: '0' must be a whole number, at least 1"),
        ("--epochs 1.5", "argument --epochs: '1.5' must be a whole number"),
        ("--batch-size -1", "argument --batch-size: '-1' must be"),
        ("--lr nan", "argument --lr: 'nan' must be a number above 0"),
        ("--lr 0", "argument --lr: '0' must be a number above 0"),
        ("--save-every -1", "argument --save-every: '-1' must be"),
        ("--seed x", "argument --seed: 'x' must be"),
        ("--parallel pipeline", "argument --parallel: invalid choice"),
        ("--impl theirs", "argument --impl: invalid choice"),
        ("--epoch-count 3", "unrecognized arguments: --epoch-count"),
    ],
)
def test_wrong_arguments_end_with_one_line(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("lab.training.wine: error: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "0"}, "WORLD_SIZE, MASTER_ADDR, MASTER_PORT is missing"),
        ({"RANK": "x", "WORLD_SIZE": "1"}, "must be numbers"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 does not fit WORLD_SIZE=2"),
    ],
)
def test_a_wrong_environment_is_said_in_one_line(
    alone: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    environment: dict[str, str],
    message: str,
) -> None:
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": "1"} if len(environment) > 1 else {}
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {**environment, **address}.items():
        monkeypatch.setenv(name, value)
    assert main(["--epochs", "1"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_checkpoint_that_cannot_be_written_is_said_in_one_line(
    alone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (alone / "checkpoints").write_text("a file is in the way")
    assert main(["--epochs", "1"]) == 1
    error = capsys.readouterr().err
    assert str(alone / "checkpoints") in error or "checkpoints/wine" in error


def test_under_torchrun(alone: Path) -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "-m", "lab.training.wine", "--epochs", "2"),
        ],
        env={**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "2 x batch 32, ddp (ours, gloo)" in lines[0]
    assert len(rows(lines)) == 2
