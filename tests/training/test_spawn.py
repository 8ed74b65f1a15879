"""A training file in several processes of one machine, and the same by lab run and torchrun."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.training import wine
from lab.training.spawn import main
from tests.conftest import Lab

ROOT = Path(__file__).parents[2]
WINE = ("-m", "lab.training.wine", "--epochs", "3", "--save-every", "0", "--events")


class Commands:
    """Python modules, run in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[str]] = []

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start `python -m COMMAND`."""
        unset = ("RANK", "WORLD_SIZE", "LAB_RUN_DIR", "MASTER_ADDR", "MASTER_PORT")
        env = {name: value for name, value in os.environ.items() if name not in unset}
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=self.folder,
            env={**env, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def spawn(self, *words: str) -> tuple[int, str, str]:
        """Run `lab.training.spawn` to its end: exit code, stdout, stderr."""
        process = self.start("lab.training.spawn", *words)
        out, err = process.communicate(timeout=280)
        return process.returncode, out, err

    def end(self) -> None:
        """End what still runs, and by SIGTERM, so that launchers end their processes."""
        for process in self._processes:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)
                process.kill()
            process.communicate()


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    running = Commands(tmp_path)
    try:
        yield running
    finally:
        running.end()


def losses(path: Path) -> list[tuple[int, float]]:
    """Step and loss, all digits, of each line of the table."""
    events: list[dict[str, Any]] = [json.loads(line) for line in path.read_text().splitlines()]
    return [(event["step"], event["loss"]) for event in events if event["event"] == "report"]


@pytest.mark.timeout(900)  # eight processes import torch
def test_the_same_file_four_ways_has_equal_losses(
    lab: Lab, commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spawned by TCP, by a file, by torchrun, by lab: bit for bit. And alone, but for rounding."""
    spawn = ("lab.training.spawn", "--nproc", "2", "--rendezvous")
    by = {
        name: commands.start(*command, *WINE, f"{name}.jsonl")
        for name, command in {
            "tcp": (*spawn, "tcp"),
            "file": (*spawn, "file"),
            "torchrun": ("torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        }.items()
    }  # side by side: no port is wanted twice
    for name, process in by.items():
        out, err = process.communicate(timeout=280)
        assert process.returncode == 0, err
        assert "2 x batch 32, ddp (ours, gloo)" in out, name
    run = lab("run", "--on", "local", "--nodes", "2", *WINE, "lab.jsonl", timeout=280)
    assert run.returncode == 0, run.stderr

    found = {name: losses(lab.cwd / f"{name}.jsonl") for name in (*by, "lab")}
    assert [step for step, _ in found["lab"]] == [3, 6, 9]
    assert found["tcp"] == found["file"] == found["torchrun"] == found["lab"]
    monkeypatch.chdir(lab.cwd)
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert wine.main([*WINE[2:], "alone.jsonl", "--global-batch", "64"]) == 0
    for (step, one), (other, two) in zip(
        losses(lab.cwd / "alone.jsonl"), found["lab"], strict=True
    ):
        assert step == other
        assert one == pytest.approx(two, rel=1e-5)  # sums in another order


def test_a_script_of_ones_own_finds_what_torchrun_sets(tmp_path: Path, commands: Commands) -> None:
    """One that knows nothing of lab: its group comes from the environment."""
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "beside.py").write_text("VALUE = 7")
    (tmp_path / "sub" / "train.py").write_text(
        "import os, sys, torch, torch.distributed as dist\n"
        "import beside\n"
        "if __name__ == '__main__':\n"
        "    dist.init_process_group('gloo')\n"
        "    ranks = torch.tensor([float(os.environ['RANK'])])\n"
        "    dist.all_reduce(ranks)\n"
        "    names = ('LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'OMP_NUM_THREADS')\n"
        "    said = f'{int(ranks)} {sys.argv} {beside.VALUE} {[os.environ[n] for n in names]}\\n'\n"
        "    os.write(1, said.encode())  # at once: both write here\n"
        "    dist.destroy_process_group()\n"
    )
    code, out, err = commands.spawn("--nproc", "2", "sub/train.py", "--nproc", "x")
    assert code == 0, err
    assert sorted(out.splitlines()) == [
        f"1 ['sub/train.py', '--nproc', 'x'] 7 ['{rank}', '2', '2', '1']" for rank in range(2)
    ]


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("raise RuntimeError('boom')", 1, "RuntimeError: boom"),
        ("sys.exit(7)", 7, "rank 1 ended with exit code 7"),
        ("os.kill(os.getpid(), 9)", 137, "rank 1 was ended by SIGKILL"),
    ],
)
def test_it_ends_with_the_process_that_fails(
    tmp_path: Path, commands: Commands, line: str, code: int, said: str
) -> None:
    """The other one, which would sleep for ever, is ended."""
    (tmp_path / "fails.py").write_text(
        "import os, sys, time\n"
        "if os.environ['RANK'] == '1':\n"
        f"    {line}\n"
        "print(os.getpid(), flush=True)\n"
        "time.sleep(1000)\n"
    )
    found, out, err = commands.spawn("--nproc", "2", "fails.py")
    assert found == code
    assert said in err
    for pid in out.split():  # it may have been ended before it said anything
        with pytest.raises(ProcessLookupError):
            os.kill(int(pid), 0)


def test_ctrl_c_ends_all_of_them(tmp_path: Path, commands: Commands) -> None:
    """Also where the launcher alone hears it."""
    (tmp_path / "waits.py").write_text(
        "import os, time\nos.write(1, f'{os.getpid()}\\n'.encode())\ntime.sleep(1000)\n"
    )
    process = commands.start("lab.training.spawn", "--nproc", "2", "waits.py")
    assert process.stdout is not None
    pids = [int(process.stdout.readline()) for _ in range(2)]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=280)
    assert process.returncode == 130
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--nproc 2", "required: SCRIPT"),
        ("wine.py", "required: --nproc"),
        ("--nproc 0 wine.py", "argument --nproc: '0' must be a whole number, at least 1"),
        ("--nproc 2 missing.py", "no script missing.py here"),
        ("--nproc 2 -m missing.module", "no module named missing.module"),
        ("--nproc 2 --rendezvous mpi x.py", "argument --rendezvous: invalid choice"),
    ],
)
def test_wrong_arguments_end_with_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: str,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(words.split())
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
