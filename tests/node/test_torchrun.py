"""The agent with torchrun below it, as a controller sees it."""

import os
import signal
import socket
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from lab.node.protocol import NodeJob
from tests.node.test_agent import AgentProcess, agent, has_ended
from tests.node.test_agent import job as spawn_job

SLEEPING = "import time; print('ready', flush=True); time.sleep(1000)"


def job(cwd: Path, script: str, *, elastic: bool = False) -> NodeJob:
    return replace(
        spawn_job(cwd, script), engine="torchrun", port=0, min_nodes=1 if elastic else None
    )


def start(running: AgentProcess, port: int | None = None) -> None:
    picked = running.until("hello")[-1]["port"]
    addr = "127.0.0.1"
    running.send(type="start", master_addr=addr, master_port=port or picked, addr=addr)


@pytest.mark.parametrize("elastic", [False, True])
def test_why_torchrun_could_not_begin(tmp_path: Path, elastic: bool) -> None:
    with (
        agent(job(tmp_path, SLEEPING, elastic=elastic)) as running,
        socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server,
    ):
        start(running, server.getsockname()[1])
        end = running.until("torchrun")[-1]
        running.until("bye")
    assert end["code"] == 1
    assert "EADDRINUSE" in end["message"]


def test_a_killed_torchrun_leaves_nothing(tmp_path: Path) -> None:
    with agent(job(tmp_path, SLEEPING)) as running:
        start(running)
        rank = running.until("started")[-1]["pid"]
        (torchrun,) = psutil.Process(running.process.pid).children()
        torchrun.kill()
        messages = running.until("bye")
    assert [m["code"] for m in messages if m["type"] in ("exit", "torchrun")] == [137, 137]
    assert has_ended(rank)


def test_a_killed_worker_takes_its_rank_along(tmp_path: Path) -> None:
    with agent(job(tmp_path, SLEEPING)) as running:
        start(running)
        rank = running.until("started")[-1]["pid"]
        os.kill(psutil.Process(rank).ppid(), signal.SIGKILL)
        messages = running.until("bye")
    assert [m["code"] for m in messages if m["type"] in ("exit", "torchrun")] == [137, 1]
    assert has_ended(rank)


def test_ranks_die_with_a_killed_agent(tmp_path: Path) -> None:
    with agent(job(tmp_path, SLEEPING)) as running:
        start(running)
        rank = running.until("started")[-1]["pid"]
        running.process.kill()
        assert has_ended(rank)


def test_a_command_that_the_node_does_not_have(tmp_path: Path) -> None:
    missing = replace(job(tmp_path, ""), command=("no-such-program",), python=False)
    with agent(missing) as running:
        start(running)
        assert "no-such-program cannot be run" in running.until("error")[-1]["message"]
        running.until("bye")


def test_the_place_of_a_rank_is_told(tmp_path: Path) -> None:
    with agent(job(tmp_path, SLEEPING, elastic=True)) as running:
        start(running)
        started = running.until("started")[-1]
        running.send(type="stop", grace=0.0)
        running.until("bye")
    assert started["rank"] == 0
    assert {**started["world"], "master": "?"} == {
        "master": "?",
        "nodes": 1,
        "ranks": 1,
        "restarts": 0,
    }
