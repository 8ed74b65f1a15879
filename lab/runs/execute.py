"""One job on one topology, from here to its verdict: what the command and the API share."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from lab.runs.controller import RunController
from lab.runs.job import Job
from lab.runs.listener import Listener
from lab.runs.stdin import Stdin
from lab.runs.verdict import Verdict
from lab.topology import Topology
from lab.transport import transport_for
from lab.transport.base import Progress


def execute(
    topology: Topology,
    job: Job,
    progress: AbstractContextManager[Progress],
    listeners: Sequence[Listener] = (),
    *,
    grace: float = 30.0,
    timeout: float | None = None,
    max_restarts: int | None = None,
    stdin: Stdin | None = None,
    prepare: Callable[[Path], None] | None = None,
) -> tuple[RunController, Verdict]:
    """Run a job to its end.

    `progress` is told what is done while the nodes come up; `stdin` is what rank 0 may read;
    `prepare` gets the run directory before anything is started.

    Raises:
        LabError: it could not be started.
    """
    transport = transport_for(topology, job.cwd, job.requirements)
    controller = RunController(
        topology, job, transport, listeners, grace, timeout, max_restarts, stdin
    )
    if prepare is not None:
        prepare(controller.directory.path)
    with progress as tell:
        controller.up(tell)
    return controller, controller.run()
