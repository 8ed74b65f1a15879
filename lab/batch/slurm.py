"""Slurm's commands: submit a script, ask where a job is, end it, queue it anew.

What they print is read as leniently as it can be, so that it works from Slurm 20 on. squeue is
asked first; scontrol where there is none, or one that has columns of the site's own; accounting
(sacct) where neither knows a job any more. None of the three needs to be there.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab import interrupts
from lab.batch.answers import as_columns, as_json, as_shown
from lab.batch.job_state import JobState
from lab.batch.login import SHARE, Answer, Login, NoCommandError
from lab.errors import LabError

BEGINS = "lab: job "
"""How the line begins that a job script writes when it begins."""
_ENDED_JOB = re.compile(r"\*\*\* JOB \d+ ON \S+ CANCELLED AT \S+(?: DUE TO ([^*]+))?")
"""slurmstepd's own line (slurm/src/slurmd/slurmstepd/req.c)."""
_STARVED = (
    r"slurmstepd-?(\S*): error: .*(?:exceeded memory limit \(|oom.kill event|out-of-memory)",
    r"slurmstepd-?(\S*): error: exceeded job memory limit",
)
"""slurmstepd's lines where memory was too little: the host's own, then what it tells the others."""
_LOST_HOSTS = re.compile(r"srun: error: Node failure on (\S+)")
"""srun's, before it ends what runs on the others (slurm/src/api/step_launch.c)."""
_CAUSES = {
    "TIME LIMIT": "TIMEOUT",
    "PREEMPTION": "PREEMPTED",
    "NODE FAILURE": "NODE_FAIL",
}


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
        """Where jobs are, asked for all at once.

        Raises:
            LabError: neither squeue nor scontrol can say it.
        """
        if not jobs:
            return {}
        wanted = ["squeue", "--noheader", "--states=all", f"--jobs={','.join(jobs)}"]
        try:
            answer = self._run([*wanted, "--format=%i|%T|%r|%N"])
        except NoCommandError as error:
            return self._shown(jobs, error)
        found = as_columns(answer.out, jobs)
        if answer.code != 0 and "Invalid job id" not in answer.err:
            raise LabError(f"squeue fails: {_words(answer)}")
        if not found and answer.code == 0 and answer.out.strip():
            told = as_json(answer.out, jobs) or as_json(self._run([*wanted, "--json"]).out, jobs)
            first = answer.out.strip().splitlines()[0]
            unread = LabError(f"squeue says what cannot be read: {first}")
            found = told or self._shown(jobs, unread)
        missing = [job for job in jobs if job not in found]
        if len(missing) > 0 and len(jobs) > 1 and answer.code != 0:
            # One unknown job makes squeue of some versions say nothing of the others.
            for job in missing:
                found |= self.states([job])
            return found
        return found | {job: self._accounted(job) for job in missing}

    def _shown(self, jobs: Sequence[str], otherwise: LabError) -> dict[str, JobState]:
        """What scontrol says of jobs, or accounting of those that it has forgotten."""
        found: dict[str, JobState] = {}
        for job in jobs:
            try:
                answer = self._run(["scontrol", "--oneliner", "show", "job", job])
            except NoCommandError:
                raise otherwise from None
            told = as_json(answer.out, [job]) or as_shown(answer.out, [job])
            if not told and "Invalid job id" not in answer.err:
                raise otherwise
            found |= told or {job: self._accounted(job)}
        return found

    def cancel(self, job: str) -> None:
        """End a job; nothing where it is over. Another Ctrl-C waits until Slurm has been told.

        Raises:
            LabError: scancel refuses.
        """
        with interrupts.deferred():
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
        wanted = ["sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job}"]
        try:
            answer = self._run([*wanted, "--format=State,NodeList"])
        except LabError:  # it is not installed
            return JobState("UNKNOWN")
        told = as_json(answer.out, [job])
        if told:
            return told[job]
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
        elif "unable to open file" in words.lower():  # there is another folder of this name
            more = f"; {SHARE}"
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


def starved_in_output(lines: Sequence[str]) -> str | None:
    """The host on which the job's limit of memory was reached; None: it was not; "": on one.

    Slurm may count such a job as failed, since its script goes on without the step that was killed.
    """
    begun = max((n for n, line in enumerate(lines) if line.startswith(BEGINS)), default=0)
    for pattern in _STARVED:
        for line in lines[begun:]:
            if (found := re.match(pattern, line, re.IGNORECASE)) is not None:
                return found[1]
    return None


def lost_in_output(lines: Sequence[str]) -> str:
    """The hosts that Slurm has given up, as it writes a list of them; empty: none, or it is srun's.

    When it ends the ranks of the others these may have no time for a last word either.
    """
    begun = max((n for n, line in enumerate(lines) if line.startswith(BEGINS)), default=0)
    return ",".join(found[1] for line in lines[begun:] if (found := _LOST_HOSTS.match(line)))


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
