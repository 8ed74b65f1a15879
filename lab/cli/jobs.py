"""Where a run stands, for commands that ask; it may be a job of Slurm."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lab.cli.output import say
from lab.errors import LabError

if TYPE_CHECKING:
    from lab.runs.directory import RunDirectory


def note_ends(runs: "Sequence[RunDirectory]") -> None:
    """Write the verdicts of jobs that are over. A cluster that does not answer is only told of."""
    if not any(run.state == "running" and "slurm" in run.info() for run in runs):
        return
    from lab.batch.run import refresh

    try:
        refresh(runs)
    except LabError as error:
        print(f"lab: warning: {error}", file=sys.stderr)


def say_end(run: "RunDirectory") -> None:
    """How a run ended, or what it was refused for, in one line."""
    verdict = run.read_json("verdict.json") or {}
    say(f"lab: run {run.id}: {verdict.get('summary', 'its controller was killed')}")


def state_in_words(state: str, info: dict[str, Any]) -> str:
    """Where a run stands: of a job that is not over, where Slurm has it."""
    job = info.get("slurm")
    if job is None or state != "running":
        return state
    from lab.batch.job_state import JobState

    if "state" not in job:
        return f"job {job['job']} is submitted"
    return f"job {job['job']} {JobState(job['state'], job['reason'])}"
