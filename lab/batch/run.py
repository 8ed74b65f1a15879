"""A run that is a job of Slurm: submitted, followed, ended; its directory is as any run's.

The job goes on without us. Whoever asks for it later finds its id in state.json and what its ranks
said in their files; once it is over, he writes the verdict down.
"""

import io
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.batch.judge import Told, judge
from lab.batch.login import login_of
from lab.batch.record import Record
from lab.batch.script import render_sbatch
from lab.batch.slurm import JobState, Slurm
from lab.errors import LabError, UsageError
from lab.node.task import NODES
from lab.runs.directory import RunDirectory, RunFiles, explained
from lab.runs.files import write_atomically, write_json
from lab.runs.hints import hint_for
from lab.runs.job import Job
from lab.runs.last_lines import LastLines
from lab.runs.listener import Listener
from lab.runs.verdict import Verdict
from lab.topology import Topology, load_topology
from lab.transport.ssh_bundle import bundle

ASK_EVERY = 10.0
"""Seconds between two questions to the scheduler, which serves everybody."""
POLL = 0.2
SCRIPT = "job.sbatch"
OUTPUT = "slurm.out"
"""What the job script itself says."""
CODE = "code"
"""Lab's own code for the ranks, beside the runs and linked to in each."""


class BatchRun:
    """One job of Slurm and its run directory."""

    def __init__(self, directory: RunDirectory) -> None:
        """A run that has been submitted."""
        self.directory = directory
        self.topology = load_topology(str(directory.path / "topology.yaml"))
        self._job = Job(**{**directory.read_json("job.json"), "cwd": directory.path.parent.parent})
        self.job_id = str(directory.info()["slurm"]["job"])
        self._slurm = slurm_of(self.topology, directory.path.parent.parent)

    @classmethod
    def submit(
        cls,
        topology: Topology,
        job: Job,
        prepare: Callable[[Path], None] | None = None,
    ) -> "BatchRun":
        """Submit a job; returns as soon as Slurm has it.

        Raises:
            UsageError: the job cannot be had on Slurm.
            LabError: sbatch does not take it; nothing of the run is left.
        """
        if topology.slurm.array is not None:
            raise UsageError(
                "slurm.array: a run is one job: submit each by itself, or take the script: "
                "lab render --as sbatch"
            )
        if not job.python or job.requirements is not None:
            raise UsageError(
                "on Slurm a job is a script or module for Python, with the packages of the "
                "cluster's own environment (slurm.venv, slurm.conda): leave --no-python and "
                "--requirements out"
            )
        merged = topology.model_copy(update={"env": {**topology.env, **job.env}})
        script = render_sbatch(merged, job.command)
        directory = RunDirectory.create(topology, job)
        path = directory.path
        try:
            with explained(path):
                write_atomically(path / SCRIPT, script)
                write_json(path / NODES, _nodes(topology))
                _link_code(path)
                if prepare is not None:
                    prepare(path)
            slurm = slurm_of(topology, job.start_folder)
            job_id = slurm.submit(path / SCRIPT, path / OUTPUT, {"LAB_RUN_DIR": str(path)})
        except BaseException:
            directory.finish(Verdict("not-started", 1, "it was not submitted"))
            directory.remove()
            raise
        directory.note(slurm={"job": job_id}, controller=None)
        return cls(directory)

    def state(self) -> JobState:
        """Where the job is; what was heard less than `ASK_EVERY` ago will do."""
        (state,) = states([self])
        return state

    def cancel(self) -> None:
        """End the job.

        Raises:
            LabError: Slurm refuses.
        """
        self._slurm.cancel(self.job_id)

    def requeue(self) -> None:
        """Have the job begin again.

        Raises:
            LabError: Slurm refuses.
        """
        self._slurm.requeue(self.job_id)
        (self.directory.path / "ended").unlink(missing_ok=True)
        self.directory.note(state="running")

    def wait_for_start(self, tell: Callable[[str], None]) -> None:
        """Return when the first rank has begun, or the job is over without.

        `tell` hears in words where the job is, whenever that changes.
        """
        record = Record(self.directory.path, self.topology)
        said = ""
        while not record.started and not self.has_ended:
            state = self.state()
            if not state.active:
                return
            if str(state) != said:
                said = str(state)
                tell(f"job {self.job_id} {said}")
            time.sleep(POLL)
            record.read(lambda *_: None, lambda _: None)

    def follow(self, listeners: Sequence[Listener] = ()) -> Verdict:
        """Hand on what the ranks say until the job is over; the verdict, which is written down."""
        record = Record(self.directory.path, self.topology)
        heard = _Heard(self.directory, listeners)
        while True:
            ended = self._ended()
            state = JobState("COMPLETED") if ended is not None else self.state()
            record.read(heard.log, heard.event)  # after the end all is there
            if not state.active:
                break
            time.sleep(POLL)
        heard.close()
        return self._settle(record, state, ended, heard.last_lines)

    @property
    def has_ended(self) -> bool:
        """Whether the job script has gone to its end, for which Slurm need not be asked."""
        return self._ended() is not None

    def _ended(self) -> int | None:
        """What the job script ended with; None: it has not, or was ended."""
        try:
            return int((self.directory.path / "ended").read_text())
        except (OSError, ValueError):
            return None

    def _settle(
        self, record: Record, state: JobState, code: int | None, last_lines: LastLines
    ) -> Verdict:
        """Write down how the job ended."""
        output = self.directory.path / OUTPUT
        said = output.read_text(errors="replace").split("\n") if output.exists() else []
        words = next((line.strip() for line in reversed(said) if line.strip()), "")
        verdict = judge(Told(self.topology, record.events, state, code, words))
        if verdict.first is not None:
            last = last_lines.of(verdict.first.rank)
            verdict = replace(
                verdict,
                first=replace(verdict.first, last_lines=last),
                hint=hint_for(verdict.first, self._job),
            )
        self.directory.finish(verdict)
        return verdict


class _Heard:
    """What the ranks of a job tell, kept and handed on."""

    def __init__(self, directory: RunDirectory, listeners: Sequence[Listener]) -> None:
        self.last_lines = LastLines()
        self._directory = directory
        self._listeners = listeners
        (directory.path / "events.jsonl").unlink(missing_ok=True)  # read from the start each time
        self._files = RunFiles(directory)
        self._restart = -1

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        """Of a rank's output, which is in its own file."""
        self.last_lines.log(rank, stream, text)
        for listener in self._listeners:
            listener.log(node, rank, stream, text)

    def event(self, message: dict[str, Any]) -> None:
        """Of a rank."""
        if message["type"] == "started" and message["restart"] > self._restart:
            if self._restart >= 0:
                self.last_lines.clear()
                self._tell({"type": "restart", "because": "the job was queued anew"})
            self._restart = message["restart"]
            run = {"type": "run", "id": self._directory.id, "master": None}
            self._tell(run | {"restart": self._restart})
        self._tell(message)

    def _tell(self, message: dict[str, Any]) -> None:
        self._files.event(message)
        for listener in self._listeners:
            listener.event(message)

    def close(self) -> None:
        """It is over."""
        self._files.close()


def states(runs: Sequence[BatchRun]) -> list[JobState]:
    """Where the jobs of several runs of one cluster are, asked for at once and not too often.

    What was heard is kept in state.json, so that this holds over several commands.
    """
    now = time.time()
    heard = [run.directory.info()["slurm"] for run in runs]
    old = [
        run for run, one in zip(runs, heard, strict=True) if now - one.get("asked", 0) > ASK_EVERY
    ]
    found: dict[str, JobState] = {}
    if old:
        found = old[0]._slurm.states([run.job_id for run in old])
    for run in old:
        state = found[run.job_id]
        run.directory.note(
            slurm={
                "job": run.job_id,
                "asked": time.time(),
                "state": state.state,
                "reason": state.reason,
                "hosts": state.hosts,
            }
        )
    return [
        found.get(run.job_id) or JobState(one["state"], one["reason"], one["hosts"])
        for run, one in zip(runs, heard, strict=True)
    ]


def refresh(runs: Sequence[RunDirectory]) -> None:
    """Note the end of jobs that are over, among those that count as running."""
    batch = [BatchRun(run) for run in runs if run.state == "running" and "slurm" in run.info()]
    by_login: dict[str | None, list[BatchRun]] = {}
    for run in batch:
        if run.has_ended:
            run.follow()
        else:
            by_login.setdefault(run.topology.slurm.login, []).append(run)
    for group in by_login.values():
        for run, state in zip(group, states(group), strict=True):
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


def _nodes(topology: Topology) -> dict[str, Any]:
    """See `lab.node.task`."""
    return {
        "topology": topology.name,
        "names": [node.name for node in topology.nodes],
        "slots": [node.slots for node in topology.nodes],
        "elastic": topology.min_nodes is not None and topology.min_nodes < topology.nnodes,
    }


def _link_code(run: Path) -> None:
    """Put lab's code for the ranks where all hosts find it: once for each content."""
    name, data = bundle()
    folder = run.parent / f".{CODE}" / name
    if not folder.is_dir():
        folder.parent.mkdir(exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=folder.parent))
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            archive.extractall(temporary, filter="data")
        temporary.chmod(0o755)
        try:
            temporary.rename(folder)
        except OSError as error:
            if not folder.is_dir():  # else somebody else has just done it
                raise LabError(f"{folder} cannot be made: {error.strerror}") from error
    (run / CODE).symlink_to(Path("..") / f".{CODE}" / name)
