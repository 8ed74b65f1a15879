"""`lab` where the caller has closed its output."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.cli import bench
from tests.conftest import COMMAND, Lab


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_a_run_without_output(closed: str, lab: Lab) -> None:
    lab.script("import sys; print('out'); print('err', file=sys.stderr)")
    words = shlex.join([sys.executable, *COMMAND, "run", "-t", "solo", "--on", "local"])
    done = subprocess.run(
        ["sh", "-c", f"{words} script.py {closed}"],
        cwd=lab.cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert ("out" in done.stdout, "ended well" in done.stderr) == (
        not closed.startswith(">&-"),
        "2>&-" not in closed,
    )
    (run,) = lab.runs()
    assert json.loads((run / "verdict.json").read_text())["kind"] == "ok"
    assert (run / "node0/rank0.out").read_text() == "out\n"
    assert (run / "node0/rank0.err").read_text() == "err\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has a device that is full")
@pytest.mark.parametrize("words", ["--version", "ps", "zoo list --json", "run script.py"])
def test_a_full_disk_is_told_in_one_line(words: str, lab: Lab) -> None:
    lab.script("print('out')")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, *COMMAND, *words.replace("run", "run -t solo --on local").split()],
            cwd=lab.cwd,
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    *_, last = done.stderr.splitlines()
    assert last == ("lab: error: what is printed here cannot be written: No space left on device")
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    "words",
    ["--help", "zoo run --help", "--version", "ps", "ps --json", "zoo list", "check", "logs"],
)
def test_a_reader_that_has_gone_ends_other_commands_quietly(words: str, lab: Lab) -> None:
    lab("run", "-t", "solo", "--on", "local", lab.script("print('out')"))
    nobody, ours = os.pipe()
    os.close(nobody)
    done = subprocess.run(
        [sys.executable, *COMMAND, *words.split()],
        cwd=lab.cwd,
        stdin=subprocess.DEVNULL,
        stdout=ours,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(ours)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")


@pytest.mark.parametrize(("words", "code"), [("nosuch", 2), ("check nosuch", 2), ("rm x y", 2)])
def test_an_error_that_nobody_reads_keeps_its_exit_code(words: str, code: int, lab: Lab) -> None:
    nobody, ours = os.pipe()
    os.close(nobody)
    command = [sys.executable, *COMMAND, *words.split()]
    done = subprocess.run(command, cwd=lab.cwd, stdout=ours, stderr=ours)
    os.close(ours)
    assert done.returncode == code


def test_a_run_whose_two_outputs_nobody_reads_has_its_grace(lab: Lab) -> None:
    script = lab.script(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: time.sleep(1) or sys.exit(0))\n"
        "while True:\n"
        "    print('out', flush=True)\n"
        "    print('err', file=sys.stderr, flush=True)\n"
        "    time.sleep(0.05)\n"
    )
    nobody, ours = os.pipe()
    os.close(nobody)
    words = ["run", "-t", "solo", "--on", "local", script]
    done = subprocess.run(
        [sys.executable, *COMMAND, *words],
        cwd=lab.cwd,
        stdin=subprocess.DEVNULL,
        stdout=ours,
        stderr=ours,
    )
    os.close(ours)
    assert done.returncode == 128 + signal.SIGPIPE
    (run,) = lab.runs()
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    (end,) = (event for event in events if event["type"] == "exit")
    assert end["code"] == 0


def test_what_was_measured_is_written_though_nobody_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(_rows: object) -> None:
        raise BrokenPipeError

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench, "_print_table", unread)
    with pytest.raises(BrokenPipeError):
        bench._measure("test", lambda _progress: [{"ms": 1}])
    assert json.loads((tmp_path / "outputs/bench-test.json").read_text()) == [{"ms": 1}]
