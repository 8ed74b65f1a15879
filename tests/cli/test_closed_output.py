"""`lab` where the caller has closed its output."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

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
