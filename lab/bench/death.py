"""From the death of one rank to the end of all others: `lab run`, and torchrun beside it."""

import re
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from lab.bench.ended import ended
from lab.bench.one_dies import LIMIT
from lab.bench.startup import torchrun_commands
from lab.channel import Channel, Progress
from lab.errors import LabError
from lab.runs.controller import RunController
from lab.runs.job import Job
from lab.topology import Topology
from lab.transport import Transport, transport_for
from lab.transport.docker import DockerTransport

MODULE = "lab.bench.one_dies"
DIES = re.compile(r"dies at ([\d.]+)")
ENDS = re.compile(r"ends at ([\d.]+)")
START_TIMEOUT = 120.0
"""Seconds for torchrun's ranks to start, and to end by themselves."""
KINDS = {"alone": "others compute", "collective": "others wait in an all-reduce"}


class _Ends:
    """A listener that notes when the one died, and when the last of the others had ended."""

    def __init__(self) -> None:
        self.said = ""
        self.last_end = 0.0

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        """See `lab.runs.Listener`."""
        self.said += text

    def event(self, message: dict[str, Any]) -> None:
        """See `lab.runs.Listener`."""
        if message["type"] == "exit":
            self.last_end = time.time()


def bench_death(topology: Topology, runs: int, progress: Progress) -> list[dict[str, Any]]:
    """Seconds from one rank's SIGKILL to the end of the last of the others.

    On containers also with ranks that wait in an all-reduce, and each beside torchrun (static
    rendezvous) in the same containers, alternating. Where nobody ends the others they end by
    themselves after `LIMIT` seconds: a row of about that says `never`.

    Raises:
        LabError: a run failed otherwise.
    """
    transport = transport_for(topology, Path.cwd())
    transport.up(progress)
    ways: dict[tuple[str, str], Callable[[], float]] = {}
    for kind in KINDS if isinstance(transport, DockerTransport) else ["alone"]:
        ways["lab run", kind] = partial(_lab_run, topology, transport, kind, progress)
        if isinstance(transport, DockerTransport):
            ways["torchrun", kind] = partial(_torchrun, transport, kind)
    seconds: dict[tuple[str, str], list[float]] = {way: [] for way in ways}
    for number in range(runs):
        for (name, kind), measure in ways.items():
            progress(f"{name}, {KINDS[kind]}, run {number + 1} of {runs}")
            seconds[name, kind].append(measure())
    return [
        {
            "way": name,
            "when": KINDS[kind],
            "on": topology.on,
            "ranks": topology.world_size,
            "median": statistics.median(values),
            "min": min(values),
            "max": max(values),
            "others ended": "by themselves" if min(values) >= LIMIT - 1 else "yes",
            "all": values,
        }
        for (name, kind), values in seconds.items()
    ]


def _lab_run(topology: Topology, transport: Transport, kind: str, progress: Progress) -> float:
    ends = _Ends()
    job = Job(command=("-m", MODULE, "{run_dir}", kind), cwd=Path.cwd())
    run = RunController(topology, job, transport, [ends])
    run.up(progress)
    verdict = ended(run)
    if verdict.first is None or verdict.first.rank != topology.world_size - 1:
        raise LabError(f"another end than was asked for: {verdict.summary}")
    return ends.last_end - _death(ends.said)


def _torchrun(transport: DockerTransport, kind: str) -> float:
    """By the ranks' own ends: torchrun itself may wait minutes for a lost node."""
    ranks = transport.topology.world_size
    with tempfile.TemporaryDirectory(dir=transport.workdir) as folder:
        commands = torchrun_commands(transport.topology, MODULE, folder, kind)
        channels = [transport.start(node, argv) for node, argv in commands]
        said = _Said()
        for channel in channels:
            threading.Thread(target=said.listen, args=(channel,), daemon=True).start()
        give_up = time.monotonic() + START_TIMEOUT
        while len(ENDS.findall(said.text)) < ranks and time.monotonic() < give_up:
            time.sleep(0.05)
        for channel in channels:
            channel.close()
    ends = [float(end) for end in ENDS.findall(said.text)]
    if len(ends) < ranks:
        raise LabError(f"torchrun's ranks did not end:\n{said.text}")
    return max(ends) - _death(said.text)


class _Said:
    """What several commands wrote to stdout."""

    def __init__(self) -> None:
        self.text = ""

    def listen(self, channel: Channel) -> None:
        for stream, data in channel.output():
            if stream == "out":
                self.text += data.decode()


def _death(said: str) -> float:
    """When the one died, by its own clock, which is that of this machine."""
    found = DIES.search(said)
    if found is None:
        raise LabError(f"the rank that was to die did not:\n{said}")
    return float(found[1])
