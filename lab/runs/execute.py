"""One job on nodes that a controller drives, from here to its verdict."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from lab.channel import Progress
from lab.errors import UsageError
from lab.runs.controller import RunController
from lab.runs.directory import RunDirectory
from lab.runs.job import Job
from lab.runs.listener import Listener
from lab.runs.stall import Stall
from lab.runs.stdin import Stdin
from lab.runs.verdict import Verdict
from lab.topology import Topology
from lab.transport import transport_for


def execute(
    topology: Topology,
    job: Job,
    progress: AbstractContextManager[Progress],
    listeners: Sequence[Listener] = (),
    *,
    grace: float | None = None,
    timeout: float | None = None,
    max_restarts: int | None = None,
    stdin: Stdin | None = None,
    stall: Stall | None = None,
    prepare: Callable[[Path], None] | None = None,
    deploy: bool = True,
) -> tuple[RunDirectory, Verdict]:
    """Run a job to its end.

    `progress` is told what is done while the nodes come up; `stdin` is what rank 0 may read;
    `prepare` gets the run directory before anything is started; `deploy`: see `transport_for`.

    Raises:
        UsageError: a limit is no such number.
        LabError: it could not be started.
    """
    _check_limits(grace, timeout, max_restarts)
    transport = transport_for(topology, job.cwd, job.requirements, deploy=deploy)
    with progress as tell:  # before there is a run: then nothing lies between it and `up`
        controller = RunController(
            topology, job, transport, listeners, grace, timeout, max_restarts, stdin, stall
        )
        controller.up(tell, prepare)
    return controller.directory, controller.run()


def _check_limits(grace: float | None, timeout: float | None, max_restarts: int | None) -> None:
    """Raise UsageError where one of them cannot be."""
    if grace is not None and not grace >= 0:  # NaN is not, either
        raise UsageError(f"grace {grace}: name the seconds, 0 or more")
    if timeout is not None and not timeout > 0:
        raise UsageError(f"timeout {timeout}: name the seconds, more than 0")
    if max_restarts is not None and max_restarts < 0:
        raise UsageError(f"max_restarts {max_restarts}: name a number, 0 or more")
