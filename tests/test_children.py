"""Commands that lab starts end in their own way."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.children import child

TIDIES = """import os, pathlib, signal, sys, time

def tidy(*_):
    sys.stderr.write("x" * 1_000_000)
    pathlib.Path("tidied").touch()
    sys.exit(7)

signal.signal(signal.SIGTERM, tidy)
print(os.getsid(0), flush=True)
time.sleep(600)
"""


@pytest.mark.timeout(60)
def test_what_is_interrupted_tidies_up_and_may_say_much(tmp_path: Path) -> None:
    started: list[subprocess.Popen[str]] = []

    def interrupted() -> None:
        argv, pipe = [sys.executable, "-c", TIDIES], subprocess.PIPE
        with child(argv, cwd=tmp_path, stdout=pipe, stderr=pipe) as process:
            started.append(process)
            assert process.stdout is not None
            assert int(process.stdout.readline()) != os.getsid(0), "Ctrl-C comes to us alone"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert started[0].returncode == 7
    assert (tmp_path / "tidied").exists()
