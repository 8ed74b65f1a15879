"""A rank that is forked from a warm process is like one that starts from nothing."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.node import warm
from lab.node.processes import lives
from lab.node.protocol import NodeJob
from tests.node.test_agent import agent, has_ended, job, text

REPORT = """
import json, logging, multiprocessing, os, random, signal, site, sys, tempfile, threading, time
def child(queue):
    queue.put([__name__, __file__])
def spawned(method):
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=child, args=(queue,))
    process.start()
    process.join()
    return process.exitcode or queue.get()
if __name__ == "__main__":
  import numpy, torch
  print(json.dumps({
    "orig_argv": sys.orig_argv, "site": [site.getuserbase(), os.path.expanduser("~")],
    "temporary": tempfile.gettempdir(),
    "zone": [time.tzname, time.strftime("%Z"), time.strftime("%H", time.localtime(0))],
    "log_began_after_the_job": logging._startTime > float(os.environ.get("WRITTEN_AT", 0)),
    "children": {name: spawned(name) for name in ("fork", "spawn", "forkserver")},
    "environ": {k: v for k, v in os.environ.items()},
    "flags": str(sys.flags), "path": sys.path, "argv": sys.argv, "executable": sys.executable,
    "mask": [int(s) for s in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
    "handlers": {s.name: str(signal.getsignal(s)) for s in signal.valid_signals()
                 if isinstance(s, signal.Signals)},
    "open": len(os.listdir("/proc/self/fd")),
    "torch_threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
    "threads": threading.active_count(),
    "own": sorted(m for m in sys.modules if m.split(".")[0] == "lab"),
    "main": [__name__, __file__, str(__spec__), sys.modules["__main__"].__dict__ is globals()],
    "cwd": os.getcwd(), "umask": os.umask(0o22), "leader": os.getsid(0) == os.getpid(),
    "stdout": [sys.stdout.write_through, sys.stdout.encoding],
    "stdin": [str(sys.stdin), sys.stdin.fileno(), sys.stdin.errors, sys.stdin.read()],
    "excepthook": sys.excepthook is sys.__excepthook__,
    "torch_was_there": TORCH,
    "random": [random.random(), float(numpy.random.rand()), torch.rand(1).item(),
               multiprocessing.current_process().authkey.hex()],
}))
"""
REPORT = "import sys; TORCH = 'torch' in sys.modules\n" + REPORT


@pytest.fixture
def warm_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[NodeJob]:
    """A job whose node keeps a warm process; its record, and so the process, is the test's own."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "pycache"))  # a kind of its own
    yield replace(job(tmp_path, REPORT, slots=2), warm=True)
    end_warm(tmp_path)


def end_warm(folder: Path) -> None:
    for record in folder.glob(f"multinode-lab-warm-{os.getuid()}"):
        with contextlib.suppress(ProcessLookupError):
            os.kill(json.loads(record.read_text())["pid"], signal.SIGKILL)


def reports(given: NodeJob) -> list[dict[str, Any]]:
    """What each rank of a run found."""
    with agent(given) as running:
        running.until("hello")
        running.start_ranks()
        messages = running.until("bye")
    assert [m["code"] for m in messages if m["type"] == "exit"] == [0, 0], messages
    return [json.loads(text(messages, rank=rank)) for rank in range(given.slots)]


def wait_until_listening(folder: Path, other_than: str = "") -> str:
    """The record of the warm process, which it writes once it listens."""
    record = folder / f"multinode-lab-warm-{os.getuid()}"
    for _ in range(200):
        if record.exists() and record.read_text() != other_than:
            return record.read_text()
        time.sleep(0.05)
    raise AssertionError("no warm process")


@pytest.mark.skipif("sys.platform != 'linux'", reason="forks are Linux's")
def test_a_forked_rank_is_like_a_new_one(warm_job: NodeJob, tmp_path: Path) -> None:
    for name in ("home", "temporary"):
        (tmp_path / name).mkdir()
    own = {"TZ": "Asia/Tokyo", "HOME": f"{tmp_path}/home", "TMPDIR": f"{tmp_path}/temporary"}
    given = replace(warm_job, env={**own, "WRITTEN_AT": "0"})
    reports(given)  # finds none, leaves one
    wait_until_listening(tmp_path)
    given = replace(given, env={**own, "WRITTEN_AT": str(time.time())})
    cold = reports(replace(given, warm=False))
    warm = reports(given)
    for before, after in zip(cold, warm, strict=True):
        assert before.pop("torch_was_there") is False
        assert after.pop("torch_was_there") is True
    # Every process has drawn numbers of its own, from each generator.
    drawn = [found.pop("random") for found in (*cold, *warm)]
    assert all(len(set(numbers)) == len(drawn) for numbers in zip(*drawn, strict=True))
    for before, after in zip(cold, warm, strict=True):
        for name, value in before.items():
            assert after[name] == value, name


@pytest.mark.skipif("sys.platform != 'linux'", reason="forks are Linux's")
def test_a_run_of_another_kind_starts_cold_and_takes_over(
    warm_job: NodeJob, tmp_path: Path
) -> None:
    reports(warm_job)
    first = wait_until_listening(tmp_path)
    other = replace(warm_job, env={"OMP_NUM_THREADS": "2"})
    found = reports(other)
    assert [r["torch_was_there"] for r in found] == [False, False]
    assert [r["torch_threads"][0] for r in found] == [2, 2]
    wait_until_listening(tmp_path, other_than=first)
    found = reports(other)
    assert [r["torch_was_there"] for r in found] == [True, True]
    assert [r["torch_threads"][0] for r in found] == [2, 2]
    assert not lives(json.loads(first))


@pytest.mark.skipif("sys.platform != 'linux'", reason="forks are Linux's")
def test_a_dead_warm_process_is_not_used(warm_job: NodeJob, tmp_path: Path) -> None:
    reports(warm_job)
    first = wait_until_listening(tmp_path)
    end_warm(tmp_path)
    assert [r["torch_was_there"] for r in reports(warm_job)] == [False, False]
    wait_until_listening(tmp_path, other_than=first)  # it has been replaced


DAEMON = """
import os, sys, time
if os.environ["RANK"] == "0" and os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.write(1, f"{os.getpid()} {'torch' in sys.modules}".encode())  # print writes in pieces
        time.sleep(1000)
    os._exit(0)
time.sleep(1000)
"""


@pytest.mark.skipif("sys.platform != 'linux'", reason="forks are Linux's")
def test_what_a_killed_agent_leaves_is_ended(warm_job: NodeJob, tmp_path: Path) -> None:
    reports(warm_job)
    wait_until_listening(tmp_path)
    (tmp_path / "script.py").write_text(DAEMON)
    with agent(warm_job) as running:
        hello = running.until("hello")[-1]
        running.start_ranks()
        pid, forked = text(running.until("log")).split()
        assert forked == b"True"
        os.kill(hello["pid"], signal.SIGKILL)
        assert has_ended(int(pid))


def test_where_it_may_not_stay_it_ends_without_work(tmp_path: Path) -> None:
    record = tmp_path / "record"
    argv = [sys.executable, "-u", str(warm.__file__), f"test-{tmp_path.name}", str(record), "0.1"]
    subprocess.run(argv, check=True, timeout=120)
    assert not lives(json.loads(record.read_text()))
