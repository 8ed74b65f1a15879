"""A run that is a job of Slurm: submitted, followed, ended; its directory is as any run's.

The job goes on without us. Whoever asks for it later finds its id in state.json and what its ranks
said in their files; once it is over, he writes the verdict down.
"""

import os
import shlex
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import interrupts
from lab.batch.code import link_code, remove_unused
from lab.batch.files import JobFiles, nodes_of
from lab.batch.job_state import JobState
from lab.batch.login import login_of
from lab.batch.owner import give_to_owner
from lab.batch.script import render_sbatch
from lab.batch.slurm import Slurm, end_in_output, lost_in_output, starved_in_output
from lab.batch.states import ASK_EVERY, states, was_active_just_now
from lab.errors import LabError, UsageError
from lab.node.task import NODES, SHARE
from lab.runs.directory import RunDirectory, explained
from lab.runs.files import write_atomically, write_json
from lab.runs.hints import hint_for
from lab.runs.job import Job
from lab.runs.listener import Listener
from lab.runs.stall import Stall
from lab.runs.verdict import Verdict
from lab.topology import Topology, load_topology

if TYPE_CHECKING:
    from lab.batch.heard import Heard

PATIENCE = 30
"""How often to ask a Slurm that does not answer, while following a job."""
POLL = 0.2
"""Seconds between two looks at what the ranks have written."""
SCRIPT = "job.sbatch"
ENVIRONMENT = "environment"
"""The variables that this run has on top of the topology's."""
OUTPUT = "slurm.out"
"""What the job script itself says."""


class BatchRun:
    """One job of Slurm and its run directory."""

    def __init__(self, directory: RunDirectory) -> None:
        """A run that has been submitted."""
        self.directory = directory
        self.topology = load_topology(str(directory.path / "topology.yaml"))
        self._job = Job(**{**directory.read_json("job.json"), "cwd": directory.path.parent.parent})
        self.job_id = str(directory.info()["slurm"]["job"])
        self.slurm = slurm_of(self.topology, directory.path.parent.parent)
        self._following: tuple[JobFiles, Heard] | None = None

    @classmethod
    def submit(
        cls,
        topology: Topology,
        job: Job,
        prepare: Callable[[Path], None] | None = None,
        stall: Stall | None = None,
    ) -> "BatchRun":
        """Submit a job; returns as soon as Slurm has it.

        Where its ranks stall, it finds out by itself why, and ends if that is wanted.

        Raises:
            UsageError: the job cannot be had on Slurm.
            LabError: sbatch does not take it; nothing of the run is left.
        """
        stall = Stall() if stall is None else stall
        _check(topology, job, stall)
        script = render_sbatch(topology, job.command)
        directory = RunDirectory.create(topology, job)
        path = directory.path
        slurm = slurm_of(topology, job.start_folder)
        job_id = None
        try:
            with explained(path):
                write_atomically(path / SCRIPT, script)
                write_json(path / NODES, nodes_of(topology) | _watch(stall))
                _write_environment(path / ENVIRONMENT, job.variables)
                link_code(path)
                if prepare is not None:
                    prepare(path)
                give_to_owner(path, topology.slurm.login)
            with interrupts.deferred():  # a job whose number is not known cannot be cancelled
                job_id = slurm.submit(path / SCRIPT, path / OUTPUT, {"LAB_RUN_DIR": str(path)})
                directory.note(slurm={"job": job_id}, controller=None)
        except BaseException:
            with interrupts.deferred():
                if job_id is not None:
                    slurm.cancel(job_id)
                directory.finish(Verdict("not-started", 1, "it was not submitted"))
                directory.remove()
                remove_unused(path.parent)
            raise
        return cls(directory)

    def state(self) -> JobState:
        """Where the job is, as of a few seconds ago: see `states`."""
        return states(self.slurm, [self.directory])[0]

    def cancel(self) -> None:
        """End the job.

        Raises:
            LabError: Slurm refuses.
        """
        self.slurm.cancel(self.job_id)

    def requeue(self) -> None:
        """Have the job begin again.

        Raises:
            LabError: Slurm refuses.
        """
        self.slurm.requeue(self.job_id)
        (self.directory.path / "ended").unlink(missing_ok=True)
        self.directory.begin_again(slurm={"job": self.job_id})  # what was heard is past

    def wait_for_start(self, tell: Callable[[str], None]) -> None:
        """Return when the first rank has begun, or the job is over without.

        `tell` hears in words where the job is, whenever that changes.
        """
        files = JobFiles(self.directory.path, nodes_of(self.topology))
        said = ""
        while not files.started and not self.has_ended:
            state = self._patient_state()
            if not state.active:
                return
            if str(state) != said:
                said = str(state)
                tell(f"job {self.job_id} {said}")
            time.sleep(POLL)
            files.read(lambda *_: None, lambda _: None)

    def follow(self, listeners: Sequence[Listener] = ()) -> Verdict:
        """Hand on what the ranks say until the job is over; the verdict, which is written down.

        Called again after an interrupt it goes on where it was, for the same listeners.
        """
        from lab.batch.heard import Heard  # imports the judges: not before the job is in the queue

        if self._following is None:
            files = JobFiles(self.directory.path, nodes_of(self.topology))
            self._following = files, Heard(self.directory, self.topology, listeners)
        files, heard = self._following
        while True:
            code = _ended(self.directory)
            state = self._patient_state() if code is None else JobState("COMPLETED")
            if code is None and not state.active:
                code = _ended(self.directory)  # while Slurm was asked
            files.read(heard.log, heard.event)  # after the end all is there
            if code and files.silent:  # has it lost a node? Slurm may know only later
                state = self._patient_state()
            # A host that does not answer may keep a job that was ended for it from being over.
            if not state.active or (state.state == "COMPLETING" and files.is_stopped):
                break
            time.sleep(POLL)
        verdict = self._settle(files, state, code, heard)
        heard.close()
        return verdict

    def _patient_state(self) -> JobState:
        """As `state`, of a Slurm that does not answer for a while: its controller restarts, say."""
        for _ in range(PATIENCE):
            try:
                return self.state()
            except LabError:
                time.sleep(ASK_EVERY)
        return self.state()

    @property
    def has_ended(self) -> bool:
        """Whether the job script has gone to its end, for which Slurm need not be asked."""
        return _ended(self.directory) is not None

    def _settle(
        self, files: JobFiles, state: JobState, code: int | None, heard: "Heard"
    ) -> Verdict:
        """Write down how the job ended."""
        from lab.batch.judge import Told, judge
        from lab.batch.why import judge_failure, review_end

        try:
            said = (self.directory.path / OUTPUT).read_text(errors="replace").split("\n")
        except OSError:  # its host writes elsewhere
            said = [f"what it said has not arrived in {self.directory.path}: {SHARE}"]
        words = next((line.strip() for line in reversed(said) if line.strip()), "")
        if state.state == "UNKNOWN":
            state = end_in_output(said) or state
        if code and (host := starved_in_output(said)) is not None:
            state = JobState("OUT_OF_MEMORY", hosts=host)
        elif hosts := lost_in_output(said):
            state = replace(state, hosts=hosts)
        verdict = judge(Told(self.topology, files.events, state, code, words))
        if verdict.first is not None:
            last = heard.last_lines.of(verdict.first.rank)
            first = replace(verdict.first, last_lines=last)
            why = judge_failure(self.directory, self.topology, files.events, first)
            hint = hint_for(first, self._job)
            verdict = replace(verdict, first=first, hint=hint).with_why(why)
        elif verdict.kind == "ok":
            shown = review_end(self.directory, self.topology, files.events)
            verdict = replace(verdict, why=shown)
        verdict = heard.auditing.close(verdict)
        self.directory.finish(verdict)
        return verdict


def _ended(directory: RunDirectory) -> int | None:
    """What the job script ended with; None: it has not, or was ended."""
    try:
        return int((directory.path / "ended").read_text())
    except (OSError, ValueError):
        return None


def refresh(runs: Sequence[RunDirectory]) -> None:
    """Note the end of jobs that are over, among those that count as running."""
    by_login: dict[str | None, list[BatchRun]] = {}
    for directory in runs:
        if directory.state != "running" or "slurm" not in directory.info():
            continue
        # Asked for first, since `lab logs -f` comes by all the time: the rest reads the topology.
        ended_well = _ended(directory) == 0  # a job that has not may have been queued anew
        if not ended_well and was_active_just_now(directory):
            continue
        run = BatchRun(directory)
        if ended_well:
            run.follow()
        else:
            by_login.setdefault(run.topology.slurm.login, []).append(run)
    for group in by_login.values():
        jobs = states(group[0].slurm, [run.directory for run in group])
        for run, state in zip(group, jobs, strict=True):
            if not state.active:
                run.follow()


def slurm_of(topology: Topology, cwd: Path) -> Slurm:
    """The commands of the topology's cluster."""
    return Slurm(login_of(topology.slurm.login), cwd)


def ask_first(topology: Topology, job: Job) -> str:
    """What sbatch says to the job's script, without taking it.

    Raises:
        LabError: it refuses.
    """
    folder = job.cwd / "runs"
    folder.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".sbatch") as file:
        file.write(render_sbatch(topology, job.command))
        file.flush()
        Path(file.name).chmod(0o644)
        return slurm_of(topology, job.cwd).test(Path(file.name))


def _check(topology: Topology, job: Job, stall: Stall) -> None:
    """Raises UsageError where a run on Slurm cannot have what the job asks for."""
    if topology.slurm.array is not None:
        raise UsageError(
            "slurm.array: a run is one job: submit each by itself, or take the script: "
            "lab render --as sbatch"
        )
    if stall.stop and topology.is_elastic:
        raise UsageError(
            "torchrun begins again where ranks of a job end that goes on with fewer nodes: leave "
            "--on-stall stop out"
        )
    if not job.python or job.requirements is not None:
        raise UsageError(
            "on Slurm a job is a script or module for Python, with the packages of the cluster's "
            "own environment (slurm.venv, slurm.conda): leave --no-python and --requirements out"
        )
    if job.engine != "spawn" or job.collect:
        raise UsageError(
            "on Slurm the topology says what starts the ranks (slurm.launcher) and how few nodes "
            "will do (nodes: 2-4), and files are where the ranks write them: leave --engine, "
            "--min-nodes and --collect out"
        )


def _watch(stall: Stall) -> dict[str, Any]:
    """What the ranks' tasks are told of it: see `lab.node.task`."""
    judge = ["-P", "-m", "lab.batch.inquiry"]
    return {"stall": {**asdict(stall), "judge": judge}} if stall.after else {}


def _write_environment(path: Path, env: Mapping[str, str]) -> None:
    """The variables of one run, for its job script alone: there may be tokens among them."""
    text = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in env.items())
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
