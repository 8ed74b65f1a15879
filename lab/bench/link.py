"""What `docker.link.rate` does: the bandwidth between two nodes by the rate asked for."""

import statistics
from collections.abc import Sequence
from typing import Any

from lab.bench.on_nodes import UNLIMITED, own_nodes, run_worker, with_rate
from lab.channel import Progress
from lab.topology import Topology, parse_topology

MEGABYTES = {UNLIMITED: 500, "1gbit": 100, "200mbit": 25, "50mbit": 8}
"""How much to send at each rate: about a second's worth."""


def bench_link(
    runs: int, progress: Progress, rates: Sequence[str] = tuple(MEGABYTES)
) -> list[dict[str, Any]]:
    """Mbit/s of payload from node1 to node0 over TCP, for each rate; medians of `runs`.

    Raises:
        LabError: a run failed.
    """
    pair = parse_topology("name: link\non: docker\nnodes: 2\n")
    return [_at_rate(rate, with_rate(pair, rate), runs, progress) for rate in rates]


def _at_rate(rate: str, topology: Topology, runs: int, progress: Progress) -> dict[str, Any]:
    command = ("lab.bench.transfer", str(MEGABYTES[rate]))
    measured = []
    with own_nodes(topology, progress) as transport:
        for number in range(runs):
            progress(f"link {rate}, run {number + 1} of {runs}")
            took = run_worker(topology, transport, command, progress)
            measured.append(took["bytes"] * 8 / took["seconds"] / 1e6)
    return {
        "rate asked for": rate,
        "Mbit/s": statistics.median(measured),
        "min": min(measured),
        "max": max(measured),
    }
