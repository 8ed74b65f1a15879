"""An agent that somebody else ends in order, at a bad moment: its ranks are missed."""

import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from lab.node.processes import started
from lab.runs.execute import execute
from lab.runs.job import Job
from lab.topology import load_topology


class Ender:
    """Ends the agent that says hello last, before ranks are told to start."""

    def __init__(self, agents: int) -> None:
        self._awaited = agents
        self.node: str | None = None

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        """Not of interest."""

    def event(self, message: dict[str, Any]) -> None:
        self._awaited -= message["type"] == "hello"
        if message["type"] == "hello" and self._awaited == 0:
            self.node = message["node"]
            os.kill(message["pid"], signal.SIGTERM)
            while started(message["pid"]) is not None:
                time.sleep(0.01)


@pytest.mark.parametrize("nodes", [1, 2])
def test_an_agent_that_is_ended_before_its_ranks_began(nodes: int, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        "import torch.distributed as dist; dist.init_process_group('gloo')"
    )
    topology = load_topology("pair", nodes=nodes, on="local")
    job = Job.from_command_line(["job.py"], topology=topology, cwd=tmp_path)
    ender = Ender(nodes)
    _, verdict = execute(topology, job, nullcontext(lambda _step: None), [ender], timeout=60)
    assert (verdict.kind, verdict.exit_code) == ("node-lost", 1)
    assert verdict.first is not None
    assert verdict.first.node == ender.node
    assert "ended its agent" in verdict.summary
