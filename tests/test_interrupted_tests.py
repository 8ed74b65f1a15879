"""Ctrl-C while tests run: what they have started ends, however often it is pressed twice."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPT = """
import signal, time
from pathlib import Path
import pytest

HERE = Path(__file__).parent

@pytest.fixture
def started():
    yield
    (HERE / "ending").touch()
    time.sleep(2)
    (HERE / "ended").touch()

def test_long(started):
    (HERE / "begun").touch()
    time.sleep(100)
"""


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


@pytest.mark.parametrize("workers", [0, 1])
def test_another_ctrl_c_waits_for_the_fixtures(workers: int, tmp_path: Path) -> None:
    (tmp_path / "test_script.py").write_text(SCRIPT)
    words = ["-p", "tests.conftest", "-c", os.devnull, "--rootdir", str(tmp_path)]
    command = [sys.executable, "-m", "pytest", f"-n{workers}", *words, str(tmp_path)]
    running = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # both signals go to all of them, as a terminal's do
        cwd=Path(__file__).parent.parent,
        env={name: text for name, text in os.environ.items() if "XDIST" not in name},
    )
    for mark in ("begun", "ending"):
        wait_for(tmp_path / mark)
        os.killpg(running.pid, signal.SIGINT)
    said, _ = running.communicate(timeout=60)
    assert (tmp_path / "ended").exists()
    assert "Traceback" not in said
    assert said.count("ending what the tests have started") == 1
    assert running.returncode == pytest.ExitCode.INTERRUPTED
