"""`lab gc` on nodes that stay up."""

from collections.abc import Iterator

import pytest

from tests.conftest import Lab

pytestmark = pytest.mark.docker
COUNT = 900
"""Processes whose description is longer than one argument of a command may be (128 KiB)."""


@pytest.fixture
def solo(lab: Lab) -> Iterator[Lab]:
    """One node that is up."""
    up = lab("up", "-t", "solo", timeout=280)
    try:
        assert up.returncode == 0, up.stderr
        yield lab
    finally:
        lab("down", "-t", "solo")


def test_however_many_processes_a_run_has_left(solo: Lab) -> None:
    left = "LAB_RUN_ID=gone LAB_RUN_DIR=$PWD/runs/gone sleep 1000"
    script = f"for _ in $(seq {COUNT}); do {left} </dev/null >/dev/null 2>&1 & done"
    assert solo("exec", "-t", "solo", "node0", "sh", "-c", script).returncode == 0
    done = solo("gc")
    assert done.returncode == 0, done.stderr
    assert all(line.startswith("lab: looking for ") for line in done.stderr.splitlines())
    lines = [line for line in done.stdout.splitlines() if "of run gone, which is over" in line]
    assert len(lines) == COUNT
    count = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c '[s]leep 1000 ' || true"
    seen = solo("exec", "-t", "solo", "node0", "sh", "-c", count)
    assert seen.stdout == "0\n"
