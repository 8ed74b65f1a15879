"""Slurm's commands: submit a script, ask where a job is, end it, queue it anew.

What they print is read as leniently as it can be, so that it works from Slurm 20 on; accounting
(sacct) is asked only where squeue does not know a job any more, and may be missing.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.batch.login import Answer, Login
from lab.errors import LabError

OVER = frozenset(
    (
        *("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "DEADLINE", "PREEMPTED", "REVOKED"),
        *("NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY", "UNKNOWN"),
    )
)
"""States in which a job is over (squeue(1), JOB STATE CODES); those that others wait in grow."""

STATES = {
    "PENDING": "waits",
    "CONFIGURING": "its nodes boot",
    "RUNNING": "runs",
    "SUSPENDED": "is suspended",
    "STOPPED": "is stopped",
    "COMPLETING": "ends",
    "REQUEUED": "goes back into the queue",
    "REQUEUE_HOLD": "is back in the queue, held",
    "COMPLETED": "ended well",
    "FAILED": "failed",
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit",
    "DEADLINE": "reached its deadline",
    "NODE_FAIL": "lost a node",
    "BOOT_FAIL": "had a node that does not boot",
    "OUT_OF_MEMORY": "was killed for its memory",
    "PREEMPTED": "was preempted",
    "REVOKED": "was revoked",
    "UNKNOWN": "is one that Slurm does not know any more",
}
BEGINS = "lab: job "
"""How the line begins that a job script writes when it begins."""
_ENDED_JOB = re.compile(r"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+(?: DUE TO ([^*]+))?")
"""slurmstepd's own line (slurm/src/slurmd/slurmstepd/req.c)."""
_CAUSES = {
    "TIME LIMIT": "TIMEOUT",
    "PREEMPTION": "PREEMPTED",
    "NODE FAILURE": "NODE_FAIL",
}
REASONS = {
    "Priority": "others come first",
    "Resources": "not enough nodes are free",
    "Dependency": "it depends on another job",
    "DependencyNeverSatisfied": "the job that it depends on did not end as it should",
    "BeginTime": "it begins at a later time (after a requeue: in about two minutes)",
    "JobHeldUser": "somebody holds it: scontrol release",
    "JobHeldAdmin": "an administrator holds it",
    "PartitionNodeLimit": "it asks for more nodes than the partition has or allows",
    "PartitionTimeLimit": "it asks for more time than the partition allows",
    "PartitionDown": "the partition is down",
    "PartitionInactive": "the partition is inactive",
    "ReqNodeNotAvail": "nodes that it needs are down, drained or reserved",
    "NodeDown": "nodes that it needs are down",
    "BadConstraints": "no nodes have what it asks for",
    "Reservation": "its reservation has not begun",
    "Licenses": "a licence is not free",
    "AssociationJobLimit": "the account has as many jobs as it may have",
    "QOSJobLimit": "the quality of service has as many jobs as it may have",
    "QOSMaxJobsPerUserLimit": "you have as many jobs as you may have",
    "launch failed requeued held": "it could not be started and is held: scontrol release",
}


@dataclass(frozen=True)
class JobState:
    """Where a job is."""

    state: str
    """Slurm's word, such as RUNNING; UNKNOWN: nobody knows the job any more."""
    reason: str = ""
    """Slurm's word for why it waits or ended so; empty: none."""
    hosts: str = ""
    """As Slurm writes a list of hosts."""

    @property
    def active(self) -> bool:
        """Whether it is not over."""
        return self.state not in OVER

    def __str__(self) -> str:
        """In words, with Slurm's own behind them."""
        told = STATES.get(self.state, "is in a state that lab does not know")
        words = self.reason if self.reason not in ("", "None") else ""
        # Some have more behind them: `ReqNodeNotAvail, UnavailableNodes:node3`.
        why = REASONS.get(words.partition(",")[0])
        if self.state == "PENDING" and why is not None:
            told = f"{told}: {why}"
        return f"{told} ({' '.join(filter(None, (self.state, words)))})"


class Slurm:
    """The commands of one cluster."""

    def __init__(self, login: Login, cwd: Path) -> None:
        """`cwd` is the folder that jobs start in."""
        self._login = login
        self._cwd = cwd

    def submit(self, script: Path, output: Path, environment: Mapping[str, str]) -> str:
        """Submit a script; its job's id.

        Args:
            script: on a file system that the cluster's hosts share.
            output: where what it prints goes.
            environment: added to what the job finds; names and values without commas.

        Raises:
            LabError: sbatch refuses, in its own words, and with what there is in place of it.
        """
        # sbatch takes % in the name of a file for a placeholder.
        where = f"--output={str(output).replace('%', '%%')}"
        answer = self._run(["sbatch", "--parsable", _export(environment), where, str(script)])
        found = re.match(r"(\d+)", answer.out.strip().rpartition("\n")[2])
        if answer.code != 0 or found is None:
            raise LabError(self._refusal(answer))
        return found[1]

    def test(self, script: Path) -> str:
        """What sbatch says of a script that it would take: when and where it would begin.

        Raises:
            LabError: it would not.
        """
        answer = self._run(["sbatch", "--test-only", str(script)])
        if answer.code != 0:
            raise LabError(self._refusal(answer))
        return (answer.err or answer.out).strip().removeprefix("sbatch: ")

    def states(self, jobs: Sequence[str]) -> dict[str, JobState]:
        """Where jobs are, asked for all at once."""
        if not jobs:
            return {}
        found = {}
        wanted = f"--jobs={','.join(jobs)}"
        answer = self._run(["squeue", "--noheader", "--states=all", wanted, "--format=%i|%T|%r|%N"])
        for line in answer.out.splitlines():
            job, state, reason, hosts = (*line.strip().split("|"), "", "", "")[:4]
            if job in jobs:  # else it is a warning
                found[job] = JobState(state, reason, hosts)
        if answer.code != 0 and "Invalid job id" not in answer.err:
            raise LabError(f"squeue fails: {_words(answer)}")
        missing = [job for job in jobs if job not in found]
        if len(missing) > 0 and len(jobs) > 1 and answer.code != 0:
            # One unknown job makes squeue of some versions say nothing of the others.
            for job in missing:
                found |= self.states([job])
            return found
        return found | {job: self._accounted(job) for job in missing}

    def cancel(self, job: str) -> None:
        """End a job; nothing where it is over.

        Raises:
            LabError: scancel refuses.
        """
        answer = self._run(["scancel", job])
        if answer.code != 0 and "Invalid job id" not in answer.err:
            raise LabError(f"job {job} cannot be cancelled: {_words(answer)}")

    def requeue(self, job: str) -> None:
        """Put a job back into the queue.

        Raises:
            LabError: it cannot be.
        """
        answer = self._run(["scontrol", "requeue", job])
        if answer.code != 0:
            raise LabError(f"job {job} cannot be put back into the queue: {_words(answer)}")

    def _accounted(self, job: str) -> JobState:
        """What accounting says of a job that the controller has forgotten."""
        try:
            answer = self._run(
                [
                    *("sacct", "--noheader", "--allocations", "--parsable2"),
                    *(f"--jobs={job}", "--format=State,NodeList"),
                ]
            )
        except LabError:  # it is not installed
            return JobState("UNKNOWN")
        state, _, hosts = answer.out.strip().rpartition("\n")[2].partition("|")
        # `CANCELLED by 1000`
        return JobState(state.partition(" ")[0] or "UNKNOWN", hosts=hosts)

    def _refusal(self, answer: Answer) -> str:
        """Why sbatch does not take a job, and what there is instead."""
        words = _words(answer)
        more = ""
        if "partition" in words.lower():
            known = self._run(["sinfo", "--noheader", "--format=%R"]).out.split()
            if known:
                more = f"; the partitions are {', '.join(sorted(set(known)))}"
        return f"sbatch does not take the job: {words}{more}"

    def _run(self, argv: Sequence[str]) -> Answer:
        return self._login.run(argv, self._cwd)


def end_in_output(lines: Sequence[str]) -> JobState | None:
    """How a job was ended, by the last line of slurmstepd in its output; None: it was not.

    For a job that Slurm has forgotten. Steps are ended for reasons of their own, so only a line
    about the job counts, and only one that came after the job last began.
    """
    for line in reversed(lines):
        if line.startswith(BEGINS):
            return None
        found = _ENDED_JOB.search(line)
        if found is not None:
            cause = (found[1] or "").partition(",")[0].strip()
            return JobState(_CAUSES.get(cause, "CANCELLED"))
    return None


def _export(environment: Mapping[str, str]) -> str:
    for value in environment.values():
        if "," in value:  # sbatch has no way to quote it
            raise LabError(f"the folder of the run must have no comma in its name: {value}")
    return "--export=" + ",".join(["ALL", *(f"{k}={v}" for k, v in environment.items())])


def _words(answer: Answer) -> str:
    """What a command said against something, in one line."""
    lines = [line.strip() for line in (answer.err or answer.out).splitlines() if line.strip()]
    texts = [re.sub(r"^(\w+: )?(error: )?", "", line) for line in lines]
    return "; ".join(texts) or f"exit code {answer.code}"
