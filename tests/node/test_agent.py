"""The agent as a controller sees it: a process that speaks the protocol."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from lab.node.protocol import NodeJob, decode, encode

Messages = list[dict[str, Any]]


def job(cwd: Path, script: str, slots: int = 1) -> NodeJob:
    (cwd / "script.py").write_text(script)
    return NodeJob(
        run_id="run",
        run_dir=str(cwd / "runs" / "run"),
        topology="solo",
        node="node0",
        node_rank=0,
        nnodes=1,
        first_rank=0,
        slots=slots,
        world_size=slots,
        command=("script.py",),
        cwd=str(cwd),
        env={},
    )


class AgentProcess:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin
        assert process.stdout
        self.process, self.stdin, self.stdout = process, process.stdin, process.stdout

    def send(self, **message: Any) -> None:
        self.stdin.write(encode(message))
        self.stdin.flush()

    def start_ranks(self) -> None:
        self.send(type="start", master_addr="127.0.0.1", master_port=29500)

    def until(self, kind: str) -> Messages:
        """All messages up to the first of that type."""
        seen: Messages = []
        for line in self.stdout:
            seen.append(decode(line))
            if seen[-1]["type"] == kind:
                return seen
        raise AssertionError(f"no {kind} among {seen}")


@contextmanager
def agent(job: NodeJob) -> Iterator[AgentProcess]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "lab.node"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    running = AgentProcess(process)
    running.stdin.write(job.to_json().encode() + b"\n")
    running.stdin.flush()
    try:
        yield running
    finally:
        if not running.stdin.closed:
            running.stdin.close()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()
            running.stdout.close()


def text(messages: Messages, stream: str = "out", rank: int = 0) -> bytes:
    chunks = [m for m in messages if m["type"] == "log" and m["stream"] == stream]
    data = "".join(m["data"] for m in chunks if m["rank"] == rank)
    return data.encode("utf-8", "surrogateescape")


def has_ended(pid: int) -> bool:
    """Waits a little: the kernel may take its time."""
    for _ in range(100):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.1)
    return False


def test_output_arrives_whole_in_order_and_before_the_exit(tmp_path: Path) -> None:
    script = """
import os, sys
os.write(1, b"not utf-8: \\xff\\xfe\\n")
os.write(1, b"x" * 10_000_000 + b"\\n")
os.write(2, "gr\\u00fc\\u00df\\n".encode())
os.write(1, b"no line break at the end")
os._exit(7)
"""
    with agent(job(tmp_path, script)) as running:
        running.until("hello")
        running.start_ranks()
        messages = running.until("exit")
        assert running.until("bye")[-1]["max_rss"] > 0
    assert messages[-1]["code"] == 7
    expected = b"not utf-8: \xff\xfe\n" + b"x" * 10_000_000 + b"\nno line break at the end"
    assert text(messages) == expected
    assert text(messages, "err") == "grüß\n".encode()


def test_exception_is_told_with_its_place_and_the_traceback_is_pythons_own(tmp_path: Path) -> None:
    script = "def f():\n    raise KeyError('spam')\n\nf()\n"
    with agent(job(tmp_path, script)) as running:
        running.until("hello")
        running.start_ranks()
        messages = running.until("exit")
    told = next(m for m in messages if m["type"] == "exception")
    assert (told["kind"], told["message"], told["line"]) == ("KeyError", "'spam'", 2)
    assert told["file"] == "script.py"
    plain = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, check=False
    )
    assert plain.returncode == messages[-1]["code"] == 1
    # Python says the whole path of a script in its traceback only where it was started with one.
    assert text(messages, "err").replace(bytes(tmp_path) + b"/", b"") == plain.stderr.replace(
        bytes(tmp_path) + b"/", b""
    )


def test_signal_is_told_as_a_shell_does(tmp_path: Path) -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
    with agent(job(tmp_path, script)) as running:
        running.until("hello")
        running.start_ranks()
        end = running.until("exit")[-1]
    assert (end["code"], end["signal"]) == (139, signal.SIGSEGV)


def test_a_code_of_ones_own_is_no_signal(tmp_path: Path) -> None:
    with agent(job(tmp_path, "import sys; sys.exit(200)")) as running:
        running.until("hello")
        running.start_ranks()
        end = running.until("exit")[-1]
    assert (end["code"], end["signal"]) == (200, None)


CHILDREN = """
import os, subprocess, sys, time
daemon = subprocess.Popen(["setsid", "sleep", "1000"])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
time.sleep(0.3)
print(os.getpid(), daemon.pid, child.pid, flush=True)
"""


def pids(running: AgentProcess) -> list[int]:
    return [int(pid) for pid in running.until("log")[-1]["data"].split()]


def test_nothing_outlives_the_end_of_stdin(tmp_path: Path) -> None:
    stubborn = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + CHILDREN
    with agent(job(tmp_path, stubborn + "time.sleep(1000)")) as running:
        running.until("hello")
        running.start_ranks()
        started = pids(running)
        running.stdin.close()  # what a killed controller looks like
        assert running.until("exit")[-1]["signal"] == signal.SIGKILL
    assert all(has_ended(pid) for pid in started)


def test_nothing_outlives_the_ranks(tmp_path: Path) -> None:
    with agent(job(tmp_path, CHILDREN)) as running:
        running.until("hello")
        running.start_ranks()
        started = pids(running)
        assert running.until("exit")[-1]["code"] == 0
        running.until("bye")
        assert all(has_ended(pid) for pid in started)


def test_ranks_die_with_a_killed_agent(tmp_path: Path) -> None:
    with agent(job(tmp_path, "import os, time\nprint(os.getpid())\ntime.sleep(1000)")) as running:
        running.until("hello")
        running.start_ranks()
        rank = pids(running)[0]
        running.process.kill()
        assert has_ended(rank)


def test_stop_terminates_first(tmp_path: Path) -> None:
    script = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
print("ready", flush=True)
time.sleep(1000)
"""
    with agent(job(tmp_path, script)) as running:
        running.until("hello")
        running.start_ranks()
        running.until("log")
        running.send(type="stop", grace=30)
        assert running.until("exit")[-1]["code"] == 5


def test_a_reader_that_does_not_read_stops_the_ranks_not_the_agent(tmp_path: Path) -> None:
    script = "while True: print('x' * 1000)"
    with agent(job(tmp_path, script)) as running:
        running.until("hello")
        running.start_ranks()
        agent_process = psutil.Process(running.process.pid)
        sizes = []
        for _ in range(10):
            time.sleep(0.1)
            sizes.append(agent_process.memory_info().rss)
        assert max(sizes) < 64 << 20
        running.stdin.close()  # and all the same it hears that the controller has gone
        running.until("bye")


def test_environment_of_two_ranks(tmp_path: Path) -> None:
    script = "import json, os; print(json.dumps(dict(os.environ)))"
    given = replace(job(tmp_path, script, slots=2), first_rank=3, world_size=5, node_rank=1)
    with agent(replace(given, env={"MINE": "a b\nc"})) as running:
        running.until("hello")
        running.start_ranks()
        messages = running.until("bye")
    for local_rank in range(2):
        env = json.loads(text(messages, rank=3 + local_rank))
        assert env["RANK"] == str(3 + local_rank)
        assert env["LOCAL_RANK"] == str(local_rank)
        assert env["WORLD_SIZE"] == "5"
        assert env["LOCAL_WORLD_SIZE"] == "2"
        assert env["NODE_RANK"] == env["GROUP_RANK"] == "1"
        assert env["OMP_NUM_THREADS"] == os.environ.get("OMP_NUM_THREADS", "1")
        assert env["MINE"] == "a b\nc"
        assert "LAB_EVENTS_FD" not in env


def test_a_missing_working_directory_is_said_not_raised(tmp_path: Path) -> None:
    with agent(replace(job(tmp_path, ""), cwd=str(tmp_path / "gone"))) as running:
        assert "gone" in running.until("error")[-1]["message"]
        running.until("bye")


def test_two_agents_are_given_different_ports(tmp_path: Path) -> None:
    picking = replace(job(tmp_path, "import time; time.sleep(1000)"), port=0)
    with agent(picking) as one, agent(picking) as other:
        ports = {running.until("hello")[-1]["port"] for running in (one, other)}
    assert len(ports) == 2
    assert all(20_000 <= port < 32_768 for port in ports)


def test_what_else_is_written_to_the_descriptor_of_events_is_dropped(tmp_path: Path) -> None:
    script = """
import os, stat
for fd in map(int, os.listdir("/dev/fd")):
    try:
        is_pipe = fd > 2 and stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:
        continue
    if is_pipe:
        os.write(fd, b'no message\\n{"type": "unknown"}\\n{"type": "exception"}\\n{"type": 7}\\n')
raise ValueError("and then")
"""
    with agent(job(tmp_path, script)) as running:
        running.until("hello")
        running.start_ranks()
        messages = running.until("bye")
    told = text(messages, "err").decode()
    assert told.count("lab: rank 0 wrote to lab's own descriptor, which is ignored: ") == 4
    assert "ignored: no message\n" in told
    assert [m["message"] for m in messages if m["type"] == "exception"] == ["and then"]
    assert {m["type"] for m in messages} <= {"started", "log", "exception", "state", "exit", "bye"}


def test_an_event_without_an_end_is_not_kept(tmp_path: Path) -> None:
    script = """
import os, stat
for fd in map(int, os.listdir("/dev/fd")):
    try:
        is_pipe = fd > 2 and stat.S_ISFIFO(os.fstat(fd).st_mode)
    except OSError:
        continue
    if is_pipe:
        with open(fd, "wb", closefd=False) as file:
            file.write(b"endless " * (3 << 17))
"""
    with agent(job(tmp_path, script)) as running:
        running.until("hello")
        running.start_ranks()
        told = text(running.until("bye"), "err").decode()
    assert told.count("lab: rank 0 wrote to lab's own descriptor, which is ignored: ") == 2


def test_a_grace_without_an_end(tmp_path: Path) -> None:
    script = """
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"asked\\n"))
os.write(1, b"ready\\n")
while True: time.sleep(1)
"""
    for grace in (float("inf"), 1e9):
        with agent(job(tmp_path, script)) as running:
            running.until("hello")
            running.start_ranks()
            running.until("log")
            running.send(type="stop", grace=grace)
            assert text(running.until("log")) == b"asked\n"
            running.send(type="stop", grace=0)
            assert running.until("bye")[-2]["signal"] == signal.SIGKILL
