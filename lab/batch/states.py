"""Where the jobs of runs are: asked for all at once, and not too often."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from lab.batch.job_state import JobState
from lab.batch.slurm import Slurm
from lab.runs.directory import RunDirectory

ASK_EVERY = 10.0
"""Seconds between two questions to the scheduler, which serves everybody."""


def states(slurm: Slurm, runs: Sequence[RunDirectory]) -> list[JobState]:
    """Where the jobs of several runs of one cluster are; what was just heard will do.

    It is kept in state.json, so that this holds over several commands.

    Raises:
        LabError: the cluster does not answer.
    """
    now = time.time()
    known = [run.info()["slurm"] for run in runs]
    old = [job["job"] for job in known if not _is_fresh(job, now)]
    found = slurm.states(old)
    for run, job in zip(runs, known, strict=True):
        if job["job"] in found:
            state = found[job["job"]]
            job |= {"asked": now, "state": state.state, "reason": state.reason}
            run.note(slurm={**job, "hosts": state.hosts})
            job["hosts"] = state.hosts
    return [JobState(job["state"], job["reason"], job["hosts"]) for job in known]


def was_active_just_now(run: RunDirectory) -> bool:
    """Whether there is nothing to ask yet: what was heard will do, and the job was not over."""
    job = run.info()["slurm"]
    return _is_fresh(job, time.time()) and JobState(job["state"]).active


def _is_fresh(job: Mapping[str, Any], now: float) -> bool:
    return 0 <= now - float(job.get("asked", 0)) <= ASK_EVERY
