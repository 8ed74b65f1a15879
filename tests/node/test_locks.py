"""Who holds the file lock that a process waits for."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.node.activity import activity
from lab.node.locks import holders_in

TAKES = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.flock(file, fcntl.LOCK_EX)
print("has it", flush=True)
sys.stdin.read()
"""
LINES = """\
1: FLOCK  ADVISORY  WRITE 10 fe:00:7 0 EOF
1: -> FLOCK  ADVISORY  WRITE 11 fe:00:7 0 EOF
1:  -> FLOCK  ADVISORY  WRITE 12 fe:00:7 0 EOF
2: POSIX  ADVISORY  WRITE 0 fe:00:8 0 99
2: -> POSIX  ADVISORY  WRITE 13 fe:00:8 0 EOF
3: OFDLCK ADVISORY  READ -1 00:06:3 0 EOF
3: -> OFDLCK ADVISORY  WRITE -1 00:06:3 0 EOF
""".splitlines()


@pytest.mark.parametrize(
    ("pid", "expected"), [(10, []), (11, [10]), (12, [10]), (13, []), (14, []), (-1, [])]
)
def test_who_waits_comes_after_who_holds_it(pid: int, expected: list[int]) -> None:
    assert holders_in(LINES, pid) == expected


@pytest.mark.skipif(sys.platform != "linux", reason="/proc/locks is Linux's")
def test_the_holder_of_what_a_process_waits_for_is_told(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TAKES, str(tmp_path / "lock")]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as first:
        assert first.stdout is not None
        first.stdout.readline()
        with subprocess.Popen(command, stdin=pipe, stdout=pipe) as second:
            held = activity(first.pid)
            assert (held["lock_of"], held["name"].endswith(f"/{first.pid}")) == ([], True)
            give_up = time.monotonic() + 60
            while not (found := activity(second.pid)["lock_of"]) and time.monotonic() < give_up:
                time.sleep(0.01)
            assert found == [held["name"]]
            first.communicate()
            second.communicate()
