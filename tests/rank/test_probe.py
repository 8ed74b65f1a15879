"""The probe in a rank: what it tells, and that the script cannot notice it."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from lab.node.spawn import BOOTSTRAP
from lab.rank.probe import address
from lab.rank.state import DEPTH, threads


@contextlib.contextmanager
def rank(folder: Path, source: str) -> Iterator["subprocess.Popen[str]"]:
    """A rank that runs a script, from its first line of output on."""
    (folder / "script.py").write_text(source)
    reading, writing = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-u", BOOTSTRAP, "script.py"],
        cwd=folder,
        env={**os.environ, "LAB_EVENTS_FD": str(writing)},
        pass_fds=[writing],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        os.close(writing)
        try:
            yield process
        finally:
            process.kill()
            os.close(reading)


def ask(pid: int, question: str) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(60)
        connection.connect(address(pid))
        connection.sendall(f"{question}\n".encode())
        answer = b""
        while data := connection.recv(1 << 16):
            answer += data
    told = json.loads(answer)
    assert isinstance(told, dict)
    return told


def first_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_for(pid: int, line: int) -> dict[str, Any]:
    """The state of a process once its main thread is in that line of the script."""
    for _ in range(600):
        told = ask(pid, "state")
        if [f["line"] for f in told["threads"][0]["frames"] if f["user"]][:1] == [line]:
            return told
        time.sleep(0.05)
    raise AssertionError(f"not in line {line}: {told}")


def test_a_thread_that_waits_is_told_of_with_its_place(tmp_path: Path) -> None:
    script = """
import threading
class Worker:
    def wait(self):
        print("here")
        threading.Lock().acquire() and lock.acquire()
lock = threading.Lock()
lock.acquire()
threading.Thread(target=Worker().wait, name="helper", daemon=True).start()
lock.acquire()
"""
    with rank(tmp_path, script) as process:
        assert first_line(process) == "here"
        told = wait_for(process.pid, 10)
        assert ask(process.pid, "pulse")["where"] == "script.py:10"
    main, helper = told["threads"]
    assert main["main"]
    expected = {"file": "script.py", "line": 10, "function": "<module>", "user": True}
    assert [{**frame, **expected} for frame in main["frames"]] == main["frames"]
    assert len(main["frames"]) == 1  # neither the bootstrap's nor runpy's
    assert (helper["name"], helper["main"]) == ("helper", False)
    assert helper["frames"][0]["function"] == "Worker.wait"
    assert not helper["frames"][-1]["user"]  # threading's own
    assert told["groups"] == told["collectives"] == []


def test_an_exception_that_is_being_handled_is_told_of_with_its_place(tmp_path: Path) -> None:
    script = """
import contextlib, json, time
def load():
    try:
        json.loads("no json")  # what a library raises has come through a line of the script
    except ValueError as error:
        raise KeyError("sample 7") from error
@contextlib.contextmanager
def cleaned_up():
    try:
        yield
    finally:
        time.sleep(1000)
print("here")
with cleaned_up():
    load()
"""
    with rank(tmp_path, script) as process:
        assert first_line(process) == "here"
        told = wait_for(process.pid, 13)
    handles = told["threads"][0]["handles"]
    assert (handles["kind"], handles["message"]) == ("KeyError", "'sample 7'")
    assert (handles["file"], handles["line"], handles["caught"]) == ("script.py", 7, None)
    shown = [link["kind"] for link in handles["chain"] if link["how"] != "hidden"]
    assert shown == ["KeyError", "JSONDecodeError"]


def test_no_code_of_an_exception_runs_and_one_that_was_handled_is_forgotten(tmp_path: Path) -> None:
    script = """
import time
class Mute(Exception):
    def __str__(self):
        time.sleep(1000)
try:
    raise KeyError("x")
except KeyError:
    pass
print("here")
input()
try:
    raise Mute("words")
except Mute:
    input()
"""
    with rank(tmp_path, script) as process:
        assert first_line(process) == "here"
        assert wait_for(process.pid, 11)["threads"][0]["handles"] is None
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        handles = wait_for(process.pid, 15)["threads"][0]["handles"]
    assert (handles["kind"], handles["message"]) == ("Mute", "words")


def test_the_script_sees_no_thread(tmp_path: Path) -> None:
    script = """
import threading
print(threading.active_count(), [thread.name for thread in threading.enumerate()])
"""
    with rank(tmp_path, script) as process:
        assert first_line(process) == "1 ['MainThread']"
        assert process.wait(60) == 0


def test_forks_are_alone_and_leave_the_probe_with_their_parent(tmp_path: Path) -> None:
    script = """
import os, time
threads = set()
os.register_at_fork(after_in_child=lambda: threads.add(len(os.listdir("/proc/self/task"))))
for _ in range(30):
    child = os.fork()
    if child == 0:
        os._exit(0 if threads == {1} else 1)
    assert os.waitpid(child, 0)[1] == 0
child = os.fork()
if child == 0:
    print(os.getpid())
    time.sleep(60)
input()
os.kill(child, 9)
"""
    with rank(tmp_path, script) as process:
        child = int(first_line(process))
        assert ask(process.pid, "pulse")["where"] == "script.py:14"
        process.kill()
        process.wait(60)
        with socket.socket(socket.AF_UNIX) as connection:
            # What a fork keeps open would take the question, and never answer.
            assert connection.connect_ex(address(process.pid)) != 0
        os.kill(child, 9)


def test_a_socket_of_the_script_in_the_place_of_the_probes_is_left_alone(tmp_path: Path) -> None:
    script = """
import os, socket
own = [socket.socketpair() for _ in range(3)]
for pair in own:
    for end in pair: end.detach()
os.closerange(3, 256)
listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(8)]
print(os.getpid())
input()
for listener in listeners:
    with socket.create_connection(listener.getsockname()) as client:
        listener.accept()[0].send(b"hello")
        assert client.recv(9) == b"hello"
print("untouched")
"""
    with rank(tmp_path, script) as process:
        pid = int(first_line(process))
        with contextlib.suppress(OSError, ValueError):  # it may or may not still answer
            ask(pid, "pulse")
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
        assert first_line(process) == "untouched"


def test_who_asks_nothing_or_nonsense_is_no_harm(tmp_path: Path) -> None:
    with rank(tmp_path, "print('here'); input()") as process:
        assert first_line(process) == "here"
        with socket.socket(socket.AF_UNIX) as silent, socket.socket(socket.AF_UNIX) as noisy:
            silent.connect(address(process.pid))
            silent.close()
            noisy.connect(address(process.pid))
            noisy.sendall(b"x" * 4096)
        assert ask(process.pid, "pulse")["where"] == "script.py:1"


def test_a_module_of_the_scripts_folder_is_not_ours_to_import(tmp_path: Path) -> None:
    for name in ("socket", "signal", "struct", "selectors", "pickle"):
        (tmp_path / f"{name}.py").write_text("print('imported', __name__)")
    script = "import sys; print([n for n in ('socket', 'signal') if n in sys.modules]); input()"
    with rank(tmp_path, script) as process:
        assert first_line(process) == "[]"
        assert ask(process.pid, "state")["threads"][0]["frames"]
        assert process.poll() is None


def test_the_line_of_the_user_is_told_below_more_frames_of_libraries_than_are() -> None:
    source = "def deep(n, then):\n    return deep(n - 1, then) if n else then()\n"
    library: dict[str, Callable[[int, Callable[[], Any]], Any]] = {}
    exec(compile(source, "/venv/site-packages/deep.py", "exec"), library)
    told = library["deep"](DEPTH + 9, partial(threads, "/", only_main=True))
    frames = told[0]["frames"]
    assert [frame["user"] for frame in frames] == [False] * DEPTH + [True]
    assert frames[-1]["file"] == __file__.lstrip("/")
    assert "partial(threads" in frames[-1]["code"]
