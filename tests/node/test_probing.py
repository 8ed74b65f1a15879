"""What an agent finds out of its ranks and of the other nodes when it is asked."""

import contextlib
import json
import os
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lab.node import stacks
from lab.node.activity import activity
from lab.rank.probe import address
from tests.node.test_agent import AgentProcess, agent, job, text

HOLDS_THE_LOCK = """
import ctypes
print("here", flush=True)
ctypes.PyDLL(None).sleep(600)
"""
"""In C code that does not let any other Python thread run."""


def answers(running: AgentProcess, what: str, number: int, **more: Any) -> list[dict[str, Any]]:
    running.send(type="probe", id=number, what=what, **more)
    return [m for m in running.until("probed") if m.get("id") == number]


def start(running: AgentProcess) -> None:
    """Until every rank has said `here`."""
    running.until("hello")
    running.start_ranks()
    while b"here" not in text(running.until("log")):
        pass


def test_each_rank_answers_and_then_the_node(tmp_path: Path) -> None:
    script = "import time\nprint('here', flush=True)\ntime.sleep(600)\n"
    with agent(job(tmp_path, script, slots=2)) as running:
        running.until("hello")
        running.start_ranks()
        pids = {m["rank"]: m["pid"] for m in running.until("log") if m["type"] == "started"}
        for _ in range(600):
            *states, probed = answers(running, "state", 7)
            told = {state["rank"]: state for state in states}
            seen = {
                ((one["probe"] or {}).get("where"), one["process"]["state"])
                for one in told.values()
            }
            if seen == {("script.py:3", "S")}:
                break
            time.sleep(0.05)
        assert {rank: state["pid"] for rank, state in told.items()} == pids
        for state in told.values():
            assert (state["source"], state["error"]) == ("probe", None)
            assert state["probe"]["threads"][0]["frames"][0]["line"] == 3
        assert probed["ptrace"] is None  # not needed
        *pulses, _ = answers(running, "pulse", 8)
        assert [pulse["probe"]["seqs"] for pulse in pulses] == [{}, {}]
        assert "threads" not in pulses[0]["probe"]


def test_a_rank_that_lets_no_thread_run_is_read_from_outside_and_goes_on(tmp_path: Path) -> None:
    with agent(job(tmp_path, HOLDS_THE_LOCK)) as running:
        start(running)
        for _ in range(600):
            state, probed = answers(running, "state", 1)
            if state["source"] != "probe":  # what it said before it held the lock
                break
            time.sleep(0.05)
        assert (state["source"], probed["ptrace"]) == ("py-spy", "ok"), state
        assert "has not answered" in state["error"]
        frame = state["probe"]["threads"][0]["frames"][0]
        assert (frame["file"], frame["line"], frame["user"]) == ("script.py", 4, True)
        assert activity(state["pid"])["state"] in "DSR"  # not frozen


WAITS_FOR_A_CHILD = """
import multiprocessing, time

def work():
    print("here", flush=True)
    time.sleep(600)

if __name__ == "__main__":
    child = multiprocessing.get_context("{method}").Process(target=work)
    child.start()
    child.join()
"""


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_that_a_rank_waits_for_are_read_too(tmp_path: Path, method: str) -> None:
    with agent(job(tmp_path, WAITS_FOR_A_CHILD.format(method=method))) as running:
        start(running)
        for _ in range(600):
            state, _ = answers(running, "family", 1)
            stacks_by_pid = {
                one["pid"]: {(f["file"], f["line"]) for t in one["threads"] for f in t["frames"]}
                for one in state["probe"].get("children", ())
            }
            if any(("script.py", 6) in places for places in stacks_by_pid.values()):
                break
            time.sleep(0.05)
        assert (state["source"], state["error"]) == ("probe", None)
        assert state["probe"]["threads"][0]["frames"][-1]["line"] == 11
        assert set(stacks_by_pid) <= {one["pid"] for one in state["process"]["children"]}
        assert any(("script.py", 6) in places for places in stacks_by_pid.values())
        for what in ("state", "pulse"):
            told, _ = answers(running, what, 2)
            assert "children" not in told["probe"], "it would take its time"


def test_a_stopped_rank_stays_stopped(tmp_path: Path) -> None:
    script = "import os, signal\nprint('here', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\n"
    with agent(job(tmp_path, script)) as running:
        start(running)
        for _ in range(600):
            state, _ = answers(running, "state", 1)
            if state["process"]["state"] == "T":
                break
            time.sleep(0.05)
        assert state["source"] == "py-spy", state
        assert [one["main"] for one in state["probe"]["threads"]] == [True]  # without the probe's
        assert state["probe"]["threads"][0]["frames"][0]["line"] == 3
        assert activity(state["pid"])["state"] == "T"
        os.kill(state["pid"], signal.SIGCONT)
        assert running.until("bye")[-2]["code"] == 0


def test_a_program_that_is_no_python_has_no_stacks_and_is_looked_at(tmp_path: Path) -> None:
    shell = replace(job(tmp_path, ""), command=("sh", "-c", "echo here; sleep 600"), python=False)
    with agent(shell) as running:
        start(running)
        state, _ = answers(running, "state", 1)
        assert (state["source"], state["probe"]) == (None, None)
        assert "no probe" in state["error"]
        assert state["process"]["cpu_s"] >= 0
        pulse, _ = answers(running, "pulse", 2)
        assert pulse["process"]["state"] in "DSR"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the probe's folder is private")
def test_another_process_that_takes_a_probes_name_is_not_believed(tmp_path: Path) -> None:
    shell = replace(job(tmp_path, ""), command=("sh", "-c", "echo here; sleep 600"), python=False)
    with agent(shell) as running, socket.socket(socket.AF_UNIX) as other:
        start(running)
        state, _ = answers(running, "pulse", 1)
        other.bind(address(state["pid"]))
        other.listen()
        state, _ = answers(running, "pulse", 2)
        assert (state["source"], state["probe"]) == (None, None)
        assert "no probe" in state["error"]


def test_a_rank_that_ends_meanwhile_is_not_waited_for(tmp_path: Path) -> None:
    script = "import ctypes\nprint('here', flush=True)\nctypes.PyDLL(None).usleep(500_000)\n"
    with agent(job(tmp_path, script)) as running:
        start(running)
        running.send(type="probe", id=1, what="pulse")
        assert {m["type"] for m in running.until("bye")} >= {"state", "probed", "exit"}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere no thread outlives the first")
@pytest.mark.parametrize(
    ("seconds", "then"), [(0.3, ["exit", "state"]), (60, ["state", "probed"])], ids=["soon", "not"]
)
def test_a_rank_that_is_ending_is_told_of_after_its_end(
    tmp_path: Path, seconds: float, then: list[str]
) -> None:
    """As one whose other threads, or memory, are still being taken away."""
    script = f"""
import ctypes, os, threading, time
def end():
    while "State:\\tZ" not in open("/proc/self/status").read():
        time.sleep(0.01)
    print("here", flush=True)
    time.sleep({seconds})
    os._exit(3)
threading.Thread(target=end).start()
ctypes.CDLL(None).pthread_exit(None)
"""
    with agent(job(tmp_path, script)) as running:
        start(running)
        running.send(type="probe", id=1, what="state")
        heard = [m for m in running.until("probed") if m["type"] in ("exit", "state", "probed")]
        assert [m["type"] for m in heard][:2] == then
        assert heard[0].get("code", 3) == 3


def test_other_nodes_are_tried(tmp_path: Path) -> None:
    script = "import time\nprint('here', flush=True)\ntime.sleep(600)\n"
    with agent(job(tmp_path, script)) as running, contextlib.ExitStack() as stack:
        start(running)
        open_, closed = (
            stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)
        )
        peers = {
            "near": ["127.0.0.1", open_.getsockname()[1]],
            "shut": ["127.0.0.1", closed.getsockname()[1]],
            "nowhere": ["no-such-host.invalid", 1],
            "no-name": ["n" * 70, 1],
        }
        closed.close()
        master = ["127.0.0.1", open_.getsockname()[1]]
        *_, probed = answers(running, "state", 1, peers=peers, master=master)
        assert (probed["peers"]["near"], probed["peers"]["shut"]) == ("ok", "refused")
        assert "its name no-such-host.invalid" in probed["peers"]["nowhere"]
        assert "its name nnn" in probed["peers"]["no-name"]
        address = f"127.0.0.1:{master[1]}"
        assert probed["master"] == {"address": address, "resolves": "127.0.0.1", "reach": "ok"}
        with socket.create_connection(("127.0.0.1", probed["port"])) as visit:
            assert visit.recv(1) == b""  # let in, and sent away


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (b"Error: Permission Denied: Try running again with elevated permissions", "ptrace is"),
        (b"Error: Failed to find python version from target process\n\nStack", "py-spy: Failed"),
        (b"", "py-spy: no answer"),
    ],
)
def test_why_there_are_no_stacks(said: bytes, why: str) -> None:
    assert stacks.why_not(said).startswith(why)
    assert stacks.is_denied(stacks.why_not(said)) == (why == "ptrace is")


def test_what_py_spy_logs_is_no_part_of_the_stacks() -> None:
    frame = {"filename": "/x/train.py", "name": "main", "line": 3}
    thread = {"thread_name": "MainThread", "thread_id": 1, "frames": [frame]}
    logged = b"[2026-01-01T00:00:00Z WARN  py_spy] [odd] version\n"
    for told in (json.dumps([thread]), json.dumps([thread], indent=2)):
        (found,) = stacks.parsed(logged + told.encode(), "/x")
        assert found["frames"][0]["file"] == "train.py"
    assert stacks.parsed(logged + b"[]\n", "/x") == []
    with pytest.raises(ValueError, match="no stacks"):
        stacks.parsed(logged, "/x")
