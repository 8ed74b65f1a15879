"""From the command to the end of a first all-reduce: `lab run` beside torchrun, same containers."""

import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lab.channel import Progress
from lab.errors import LabError
from lab.topology import Node, Topology, dump_topology
from lab.transport.docker import DockerTransport

MODULE = "lab.bench.first_all_reduce"
ENDED = re.compile(r"first all-reduce ended at ([\d.]+)")


def bench_startup(topology: Topology, runs: int, progress: Progress) -> list[dict[str, Any]]:
    """Seconds of each way on warm nodes, alternating, `runs` times each.

    A run's time goes from the start of the command to the moment when the last rank has its first
    all-reduce behind it; one run of each way goes before and does not count.

    Raises:
        LabError: a run failed.
    """
    transport = DockerTransport(topology, Path.cwd())
    transport.up(progress)
    ways: dict[str, Callable[[], float]] = {
        "lab run": lambda: lab_run(topology),
        "lab run --cold": lambda: lab_run(topology, "--cold"),
        "torchrun by docker exec": lambda: _torchrun(transport),
    }
    return compare_starts(ways, "torchrun by docker exec", runs, progress)


def compare_starts(
    ways: Mapping[str, Callable[[], float]], base: str, runs: int, progress: Progress
) -> list[dict[str, Any]]:
    """Rows of each way's seconds, alternating, and of each one's ratio to `base`."""
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(runs + 1):
        for way, measure in ways.items():
            progress(f"{way}, {'warm-up' if number == 0 else f'run {number} of {runs}'}")
            taken = measure()
            if number > 0:
                seconds[way].append(taken)
    rows = [_row(way, values) for way, values in seconds.items()]
    for way in ways:
        if way != base:
            ratios = [a / b for a, b in zip(seconds[way], seconds[base], strict=True)]
            rows.append(_row(f"{way} / {base}, pair by pair", ratios))
    return rows


def _row(way: str, values: list[float]) -> dict[str, Any]:
    median = statistics.median(values)
    return {"way": way, "median": median, "min": min(values), "max": max(values), "all": values}


def lab_run(topology: Topology, *options: str) -> float:
    """Seconds to the first all-reduce. Through a file: options may have changed the topology."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{topology.name}.yaml"
        file.write_text(dump_topology(topology))
        argv = [sys.executable, "-m", "lab", "run", "-t", str(file), *options, "-m", MODULE]
        return _last_all_reduce([argv], topology.world_size)


def torchrun_commands(
    topology: Topology, module: str, *arguments: str
) -> list[tuple[Node, list[str]]]:
    """What starts a module by torchrun on each node of a topology."""
    port = 20_000 + int(time.time()) % 10_000  # the last run's may linger in TIME_WAIT
    commands = []
    for node_rank, node in enumerate(topology.nodes):
        argv = ["torchrun", f"--nnodes={topology.nnodes}", f"--nproc-per-node={node.slots}"]
        argv += [f"--node-rank={node_rank}", f"--master-port={port}"]
        argv += [f"--master-addr={topology.nodes[0].name}", "-m", module, *arguments]
        commands.append((node, argv))
    return commands


def _torchrun(transport: DockerTransport) -> float:
    commands = [
        ["docker", "exec", *transport.exec_arguments(node, argv)]
        for node, argv in torchrun_commands(transport.topology, MODULE)
    ]
    return _last_all_reduce(commands, transport.topology.world_size)


def _last_all_reduce(commands: Sequence[Sequence[str]], world_size: int) -> float:
    """Run commands side by side; seconds until the last rank said that it was through."""
    began = time.time()
    processes = [
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for argv in commands
    ]
    outputs = [process.communicate() for process in processes]
    ended = [float(t) for out, _ in outputs for t in ENDED.findall(out)]
    if len(ended) != world_size or any(process.returncode for process in processes):
        raise LabError("a run failed:\n" + "\n".join(out + err for out, err in outputs))
    return max(ended) - began
