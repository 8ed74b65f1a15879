"""What `docker.link.rate` does: the bandwidth between two nodes by the rate asked for."""

import re
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.errors import LabError
from lab.runs import Job, RunController
from lab.topology import parse_topology
from lab.transport import Progress, transport_for

TOOK = re.compile(r"([\d.]+) seconds for (\d+) bytes")
MEGABYTES = {"none": 500, "1gbit": 100, "200mbit": 25, "50mbit": 8}
"""How much to send at each rate: about a second's worth."""


class _Collector:
    """A listener that keeps what rank 0 prints."""

    def __init__(self) -> None:
        self.text = ""

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        """See `lab.runs.Listener`."""
        if rank == 0 and stream == "out":
            self.text += text

    def event(self, message: dict[str, Any]) -> None:
        """See `lab.runs.Listener`."""


def bench_link(
    runs: int, progress: Progress, rates: Sequence[str] = tuple(MEGABYTES)
) -> list[dict[str, Any]]:
    """Mbit/s of payload from node1 to node0 over TCP, for each rate; medians of `runs`.

    Raises:
        LabError: a run failed.
    """
    return [_at_rate(rate, runs, progress) for rate in rates]


def _at_rate(rate: str, runs: int, progress: Progress) -> dict[str, Any]:
    link = "" if rate == "none" else f"\ndocker: {{link: {{rate: {rate}}}}}"
    topology = parse_topology(f"name: bench-link-{rate}\non: docker\nnodes: 2{link}\n")
    transport = transport_for(topology, Path.cwd())
    job = Job(command=("-m", "lab.bench.transfer", str(MEGABYTES[rate])), cwd=Path.cwd())
    measured = []
    try:
        for number in range(runs):
            progress(f"link {rate}, run {number + 1} of {runs}")
            collector = _Collector()
            run = RunController(topology, job, transport, [collector])
            run.up(progress)
            verdict = run.run()
            took = TOOK.search(collector.text)
            if took is None:
                raise LabError(f"no measurement at {rate}: {verdict.summary}")
            seconds, size = float(took[1]), int(took[2])
            measured.append(size * 8 / seconds / 1e6)
    finally:
        transport.down(progress)
    return {
        "rate asked for": rate,
        "Mbit/s": statistics.median(measured),
        "min": min(measured),
        "max": max(measured),
    }
