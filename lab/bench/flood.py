"""How fast lines of ranks reach the terminal and the run directory, and what memory that takes."""

import statistics
from pathlib import Path
from typing import Any

from lab.bench.ended import ended
from lab.channel import Progress
from lab.errors import LabError
from lab.runs.controller import RunController
from lab.runs.job import Job
from lab.topology import Topology
from lab.transport import transport_for

LINES = 200_000
MODULE = "lab.bench.print_lines"


class _Counter:
    """A listener that takes everything and shows nothing, as a terminal with no end."""

    def __init__(self) -> None:
        self.lines = 0

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        """See `lab.runs.Listener`."""
        if stream == "out":
            self.lines += text.count("\n")

    def event(self, message: dict[str, Any]) -> None:
        """See `lab.runs.Listener`."""


def bench_flood(topology: Topology, runs: int, progress: Progress) -> list[dict[str, Any]]:
    """Ranks that print `LINES` lines of 80 characters each, as fast as they can.

    Returns:
        One row: thousand lines per second of all ranks together, from the first rank's start to the
        last one's end; peak memory (MiB) of the controller and of the largest agent.

    Raises:
        LabError: lines were lost.
    """
    rates, controllers, agents = [], [], []
    for number in range(runs):
        progress(f"flood, run {number + 1} of {runs}")
        counter = _Counter()
        job = Job(command=("-m", MODULE, str(LINES)), cwd=Path.cwd())
        run = RunController(topology, job, transport_for(topology, Path.cwd()), [counter])
        run.up(progress)
        verdict = ended(run)
        expected = LINES * topology.world_size
        if verdict.kind != "ok" or counter.lines != expected:
            raise LabError(f"{counter.lines} of {expected} lines came: {verdict.summary}")
        rss = dict(verdict.max_rss_kib)
        controllers.append(rss.pop("controller") / 1024)
        agents.append(max(rss.values()) / 1024)
        rates.append(expected / verdict.seconds / 1000)
    return [
        {
            "ranks": topology.world_size,
            "on": topology.on,
            "klines/s": statistics.median(rates),
            "min": min(rates),
            "max": max(rates),
            "controller MiB": max(controllers),
            "agent MiB": max(agents),
        }
    ]
