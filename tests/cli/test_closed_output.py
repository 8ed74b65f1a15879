"""`lab` where the caller has closed its output."""

import json
import shlex
import subprocess
import sys

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
