"""`lab run --timeout`."""

import json

import pytest

from lab.cli.durations import seconds
from lab.errors import UsageError
from tests.conftest import Lab


@pytest.mark.parametrize(
    ("text", "value"), [("90", 90), ("90s", 90), ("5m", 300), ("2h", 7200), ("1h30m", 5400)]
)
def test_lengths(text: str, value: float) -> None:
    assert seconds(text, "--timeout") == value


@pytest.mark.parametrize("text", ["", "0", "-1", "5 m", "soon", "5x", "m"])
def test_what_is_no_length(text: str) -> None:
    with pytest.raises(UsageError, match="90s, 5m or 2h"):
        seconds(text, "--timeout")


def test_a_run_that_takes_too_long_is_ended(lab: Lab) -> None:
    script = lab.script("import time; print('at work', flush=True); time.sleep(1000)")
    done = lab("run", "-t", "pair", "--on", "local", "--timeout", "2s", script)
    assert done.returncode == 124
    last = "lab: not done after 2 s (--timeout); all ranks have ended"
    assert done.stderr.splitlines()[-1] == last
    assert "lab: the time is up (--timeout): ending the ranks, which have 30 s" in done.stderr
    told = json.loads((lab.runs()[0] / "verdict.json").read_text())
    assert (told["kind"], told["exit_code"], told["ended"]) == ("timeout", 124, [0, 1])


def test_restarts_give_no_new_time(lab: Lab) -> None:
    script = lab.script("import sys, time; time.sleep(1); sys.exit(3)")
    limits = ("--timeout", "3s", "--max-restarts", "1000")
    done = lab("run", "-t", "pair", "--on", "local", *limits, script, timeout=60)
    last = json.loads((lab.runs()[0] / "verdict.json").read_text())
    # The time may be up while a failure is looked at, and then that is the end.
    assert (done.returncode, last["kind"]) in ((124, "timeout"), (3, "exit"))
    assert done.stderr.count("beginning again") < 5


def test_a_failure_before_is_the_verdict(lab: Lab) -> None:
    done = lab("run", "-t", "solo", "--on", "local", "--timeout", "1h", lab.script("exit(3)"))
    assert done.returncode == 3
