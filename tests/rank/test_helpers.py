"""What ranks tell of threads and processes of their own that have failed."""

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from lab.rank.endings import Endings
from tests.conftest import Lab
from tests.rank.test_probe import ask, first_line, rank

THREADS = """
import json, queue, threading, time
def fails(name):
    json.loads(name)
def ends():
    raise SystemExit(1)
for target in (lambda: fails("no json"), ends, lambda: None):
    thread = threading.Thread(target=target, name="reader")
    thread.start()
    thread.join()
print("here", flush=True)
time.sleep(1000)
"""


def test_a_thread_that_an_exception_has_ended_is_told_of(tmp_path: Path) -> None:
    with rank(tmp_path, THREADS) as process:
        lines = [first_line(process)]
        while lines[-1] != "here":
            lines.append(first_line(process))
        told = ask(process.pid, "state")["helpers"]
    (thread,) = told["threads"]
    assert thread["name"] == "reader"
    raised = thread["exception"]
    assert (raised["kind"], raised["file"], raised["line"]) == ("JSONDecodeError", "script.py", 4)
    assert told["processes"] == []
    # Python says what it always says.
    assert lines[0] == "Exception in thread reader:"
    assert "helpers.py" not in "\n".join(lines)


def test_the_scripts_own_hook_is_called_and_is_the_only_one(lab: Lab) -> None:
    script = lab.script("""
import threading
assert threading.excepthook is threading.__excepthook__
threading.excepthook = lambda args: print("mine", args.exc_value, args.thread.name)
def fails():
    raise ValueError("seven")
thread = threading.Thread(target=fails, name="reader")
thread.start()
thread.join()
""")
    done = lab("run", "-t", "solo", "--on", "local", script)
    assert done.returncode == 0, done.stderr
    assert "mine seven reader" in done.stdout
    assert "Traceback" not in done.stderr


PROCESSES = """
import multiprocessing, multiprocessing.connection, os, signal, sys, time
def child(what):
    if what == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(1000 * (what == "runs"))
    sys.exit(3 if what == "fails" else 0)
if __name__ == "__main__":
    context = multiprocessing.get_context(METHOD)
    kinds = ("fails", "killed", "ends", "runs")
    all = {what: context.Process(target=child, args=(what,), name=what) for what in kinds}
    for process in all.values():
        process.daemon = True
        process.start()
    unstarted = context.Process(target=child)
    for process in list(all.values())[:3]:
        multiprocessing.connection.wait([process.sentinel])
    print("here", flush=True)
    sys.stdin.readline()
    print(*(process.exitcode for process in all.values()), flush=True)
    time.sleep(1000)
"""


def ended(pid: int) -> list[dict[str, Any]]:
    """Its processes, once three have ended: their sentinels are a moment too early."""
    for _ in range(600):
        told: list[dict[str, Any]] = ask(pid, "state")["helpers"]["processes"]
        if [one["code"] for one in told].count(None) == 1:
            return told
        time.sleep(0.05)
    raise AssertionError(told)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_are_told_of_with_how_they_have_ended(tmp_path: Path, method: str) -> None:
    if method == "fork" and sys.platform == "darwin":
        pytest.skip("forks of macOS may not go on")
    with rank(tmp_path, PROCESSES.replace("METHOD", repr(method))) as process:
        assert first_line(process) == "here"
        seen = [ended(process.pid)]
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert first_line(process) == "3 -9 0 None"  # their ends are the script's to see
        seen.append(ask(process.pid, "state")["helpers"]["processes"])
    for told in seen:
        ends = {"fails": 3, "killed": -9, "ends": 0, "runs": None}
        assert {one["name"]: one["code"] for one in told} == ends
        assert {one["name"] for one in told[:2]} == {"fails", "killed"}


RAISES = """
import json, multiprocessing, time
def child(words):
    try:
        json.loads(words)
    finally:
        print("child", flush=True)
if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    process = context.Process(target=child, args=("no json",))
    process.start()
    process.join()
    print("here", process.exitcode, flush=True)
    time.sleep(1000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="forks of macOS may not go on")
def test_what_a_forked_process_has_raised_is_told_of(tmp_path: Path) -> None:
    source = RAISES
    with rank(tmp_path, source) as process:
        lines = [first_line(process)]
        while not lines[-1].startswith("here"):
            lines.append(first_line(process))
        assert lines[-1] == "here 1"
        assert "endings.py" not in "".join(lines)
        assert "Process ForkProcess-1:" in lines
        for _ in range(2):
            (told,) = ask(process.pid, "state")["helpers"]["processes"]
            raised = told["exception"]
            assert (told["name"], told["code"]) == ("ForkProcess-1", 1)
            assert (raised["kind"], raised["file"]) == ("JSONDecodeError", "script.py")
            assert raised["line"] == 5


def test_nothing_is_written_where_the_script_has_closed_the_pipe(tmp_path: Path) -> None:
    def others_file(end: int) -> None:
        theirs = os.open(tmp_path / "theirs", os.O_RDWR | os.O_CREAT)
        os.dup2(theirs, end)
        os.close(theirs)

    endings = Endings(str(tmp_path))
    others_file(endings._writing)
    others_file(endings._reading)
    child = os.fork()
    if child == 0:
        try:
            raise ValueError("x")
        except ValueError:
            endings.note()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "theirs").read_bytes() == b""
    assert endings.told() == {}
    for end in (endings._reading, endings._writing):
        os.close(end)
