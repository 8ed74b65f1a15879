"""What is known of processes that come and go while one looks."""

import os
import subprocess
import sys

import pytest

from lab.node.processes import descendants

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")


def test_those_that_end_meanwhile_are_no_error() -> None:
    with subprocess.Popen(["bash", "-c", "while :; do /bin/true; done"]) as shell:
        try:
            seen = set()
            for _ in range(3000):  # of which some hundred met one that was just ending
                seen.update(descendants(os.getpid()))
        finally:
            shell.kill()
    assert shell.pid in seen
