"""Runs a suite's sections on a topology's nodes, at one link rate after another."""

import json
import os
import platform
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lab.bench.ended import ended
from lab.bench.suites import RESULT, Suite
from lab.channel import Progress
from lab.errors import LabError, UsageError
from lab.runs.controller import RunController
from lab.runs.job import Job
from lab.topology import Link, Topology
from lab.transport import Transport, transport_for

UNLIMITED = "none"

Table = dict[str, Any]
"""section, title, topology, nodes, world, rate, runs, rows, notes; `rows` are the lines to show."""


@dataclass(frozen=True)
class Plan:
    """What is asked of a suite."""

    sections: Sequence[str]
    rates: Sequence[str]
    runs: int
    options: Mapping[str, str | int | None]
    """Further options of the worker, without their dashes; None: its default."""


def plan_sections(suite: Suite, only: Sequence[str] | None) -> list[str]:
    """The sections that `--only` names; all without it.

    Raises:
        UsageError: there is no such section.
    """
    for name in only or ():
        if name not in suite.sections:
            raise UsageError(f"--only {name}: the sections are {', '.join(suite.sections)}")
    return list(only or suite.sections)


def run_suite(
    suite: Suite, topology: Topology, plan: Plan, progress: Progress, show: Callable[[Table], None]
) -> list[Table]:
    """Measure; each table is shown as soon as it is there.

    Raises:
        UsageError: a rate is none, or links cannot be limited where the nodes are.
        LabError: a run failed.
    """
    tables = []
    limited = {rate: with_rate(topology, rate) for rate in plan.rates}  # refuse before measuring
    for rate, nodes in limited.items():
        with own_nodes(nodes, progress) as transport:
            for section in plan.sections:
                command = (suite.module, section, *_arguments(plan))
                step = partial(_say, progress, f"{suite.name} {section}, rate {rate}")
                tables.append(
                    {
                        "section": section,
                        "title": suite.sections[section],
                        "topology": topology.name,
                        "on": topology.on,
                        "nodes": topology.nnodes,
                        "world": topology.world_size,
                        "rate": rate,
                        "runs": plan.runs,
                        **run_worker(nodes, transport, command, step),
                    }
                )
                show(tables[-1])
    return tables


def _say(progress: Progress, what: str, step: str) -> None:
    progress(f"{what}: {step}")


def with_rate(topology: Topology, rate: str) -> Topology:
    """The topology with each node's link limited, under a name of its own.

    Raises:
        UsageError: there is no such rate, or its links cannot be limited.
    """
    name = f"bench-{topology.name}"
    if rate == UNLIMITED:
        return topology.model_copy(update={"name": name})
    if topology.on != "docker":
        raise UsageError(f"--rate {rate}: only links of containers can be limited, use --on docker")
    before = topology.docker.link or Link()
    try:
        link = Link.model_validate({**before.model_dump(), "rate": rate})
    except ValidationError as error:
        raise UsageError(f"--rate {rate}: {error.errors()[0]['msg']}") from None
    docker = topology.docker.model_copy(update={"link": link})
    return topology.model_copy(update={"name": f"{name}-{rate}", "docker": docker})


@contextmanager
def own_nodes(topology: Topology, progress: Progress) -> Iterator[Transport]:
    """Nodes for this measurement alone, removed at the end."""
    transport = transport_for(topology, Path.cwd())
    try:
        yield transport
    finally:
        transport.down(progress)


def run_worker(
    topology: Topology, transport: Transport, command: Sequence[str], progress: Progress
) -> dict[str, Any]:
    """Run a module with arguments on all ranks; what rank 0 left as its result.

    Raises:
        LabError: a rank failed, or left nothing.
    """
    listener = _Rank0(progress)
    job = Job(command=("-m", *command), cwd=Path.cwd())
    controller = RunController(topology, job, transport, [listener])
    controller.up(progress)
    verdict = ended(controller)
    path = controller.directory.path / RESULT
    if verdict.kind != "ok" or not path.is_file():
        words = verdict.first.traceback if verdict.first is not None else None
        last = f"\n{words.rstrip()}" if words else ""
        raise LabError(f"no measurement: {verdict.summary} (run {controller.directory.id}){last}")
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result


def machine() -> dict[str, Any]:
    """What the times of a benchmark depend on, beside what it says itself."""
    return {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "processor": platform.machine(),
        "python": platform.python_version(),
    }


def _arguments(plan: Plan) -> list[str]:
    given = {"runs": plan.runs, **plan.options}
    return [f"--{name}={value}" for name, value in given.items() if value is not None]


class _Rank0:
    """A listener that takes what rank 0 prints, line by line, for progress."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._pending = ""

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        """See `lab.runs.Listener`."""
        if rank == 0 and stream == "out":
            *lines, self._pending = (self._pending + text).split("\n")
            for line in lines:
                self._progress(line)

    def event(self, message: dict[str, Any]) -> None:
        """See `lab.runs.Listener`."""
