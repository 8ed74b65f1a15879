"""Where the jobs of runs are: asked for all at once, and not too often."""

import time
from collections.abc import Sequence

from lab.batch.slurm import JobState, Slurm
from lab.runs.directory import RunDirectory

ASK_EVERY = 10.0
"""Seconds between two questions to the scheduler, which serves everybody."""
PROVISIONAL = frozenset(("FAILED", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "UNKNOWN"))
"""What a job that goes back into the queue may be for a moment, too: believed when heard twice."""


def states(slurm: Slurm, runs: Sequence[RunDirectory]) -> list[JobState]:
    """Where the jobs of several runs of one cluster are; what was just heard will do.

    It is kept in state.json, so that this holds over several commands.

    Raises:
        LabError: the cluster does not answer.
    """
    now = time.time()
    known = [run.info()["slurm"] for run in runs]
    old = [job["job"] for job in known if not 0 <= now - job.get("asked", 0) <= ASK_EVERY]
    found = slurm.states(old)
    for run, job in zip(runs, known, strict=True):
        if job["job"] in found:
            heard = found[job["job"]]
            believed = heard.state not in PROVISIONAL or job.get("heard") == heard.state
            job |= {"asked": now, "heard": heard.state, "reason": heard.reason}
            job |= {"state": heard.state if believed else "COMPLETING", "hosts": heard.hosts}
            run.note(slurm=job)
    return [JobState(job["state"], job["reason"], job["hosts"]) for job in known]
