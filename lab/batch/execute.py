"""One job on one topology, wherever that is, from here to its verdict."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from lab.batch.run import BatchRun
from lab.channel import Progress
from lab.errors import UsageError
from lab.runs.directory import RunDirectory
from lab.runs.job import Job
from lab.runs.listener import Listener
from lab.runs.stall import Stall
from lab.runs.stdin import Stdin
from lab.runs.verdict import Verdict
from lab.topology import Topology


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
    """Run a job to its end: `lab.runs.execute`, or as a job of Slurm.

    Ctrl-C, TERM and HUP cancel a job of Slurm. Nobody is there whom rank 0 could read from.

    Raises:
        UsageError: a limit is no such number, or Slurm has another way to set it.
        LabError: it could not be started.
    """
    if topology.on != "slurm":
        from lab.runs import execute as driven  # with all that drives a run: a job needs none of it

        return driven.execute(
            topology,
            job,
            progress,
            listeners,
            grace=grace,
            timeout=timeout,
            max_restarts=max_restarts,
            stdin=stdin,
            stall=stall,
            prepare=prepare,
            deploy=deploy,
        )
    if grace is not None or timeout is not None or max_restarts is not None:
        raise UsageError(
            "on Slurm the topology sets the limits: slurm.time in place of a timeout, "
            "slurm.requeues in place of restarts; the grace is the cluster's KillWait"
        )
    run: BatchRun | None = None
    try:
        with progress as tell:
            run = BatchRun.submit(topology, job, prepare, stall)
            tell(f"job {run.job_id} is submitted")
            run.wait_for_start(tell)
        return run.directory, run.follow(listeners)
    except KeyboardInterrupt:
        if run is None:
            raise
        run.cancel()
        return run.directory, run.follow(listeners)
    except SystemExit:  # SIGTERM, or a terminal that closes: see `lab.__main__`
        if run is not None:
            run.cancel()
            run.follow(listeners)
        raise
