"""The run directory: everything that is known about a run, and all that is said later about it."""

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from errno import EDQUOT, ENOSPC
from io import FileIO
from pathlib import Path
from typing import Any

from lab.errors import LabError, UsageError
from lab.node.processes import this_process
from lab.runs.files import write_atomically, write_json
from lab.runs.job import Job
from lab.runs.verdict import Verdict
from lab.topology import Topology, dump_topology
from lab.transport.run_state import RunState, run_state

RUNS = "runs"
RESERVE = ".reserve"
"""Room on the disk for how the run ended, which is to be said where the disk is full, too."""
RESERVED = 1 << 16
"""Bytes of it."""


class RunDirectory:
    """`runs/<id>/`: topology.yaml, job.json, state.json, events.jsonl, verdict.json and the logs.

    state.json is `{"state": "running" | "finished", ...}`; a run whose controller has died without
    a word stays `running` there, and `state` says `died`. A run that is a job of a batch system has
    no controller: it is running until somebody who asks after the job notes its end.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.name

    @classmethod
    def create(cls, topology: Topology, job: Job) -> "RunDirectory":
        """A new directory below the job's working directory, in state `running`.

        Raises:
            LabError: it cannot be written.
        """
        now = datetime.now(UTC)
        path = job.cwd / RUNS / f"{now:%Y%m%d-%H%M%S}-{topology.name}-{secrets.token_hex(2)}"
        run = cls(path)
        with explained(path), _nothing_half(path):
            path.mkdir(parents=True)
            # Random bytes: some disks keep zeros, or what can be compressed, in no space at all.
            (path / RESERVE).write_bytes(os.urandom(RESERVED))
            for node in topology.nodes:
                (path / node.name).mkdir()
            write_atomically(path / "topology.yaml", dump_topology(topology))
            write_json(path / "job.json", job.to_json())
            run._write_state(
                state="running",
                controller=this_process(),
                created=now.isoformat(timespec="microseconds"),  # several begin in one second
                topology=topology.name,
                on=topology.on,
                nodes=topology.nnodes,
                ranks=topology.world_size,
                job=str(job),
            )
        return run

    @classmethod
    def all(cls, cwd: Path) -> list["RunDirectory"]:
        """The runs below a working directory, oldest first."""
        return sorted(
            (cls(state.parent) for state in (cwd / RUNS).glob("*/state.json")),
            key=lambda run: (run.info().get("created", ""), run.id),
        )

    @classmethod
    def find(cls, cwd: Path, run_id: str | None) -> "RunDirectory":
        """The run of that id or the only one whose id has that in it; the latest for None.

        Raises:
            UsageError: there is none, or there are several.
        """
        if run_id == "":  # in all of them; most likely a variable that is not set
            raise UsageError("the run's id is empty; lab ps shows them all")
        runs = cls.all(cwd)
        if not runs:
            raise UsageError(f"there are no runs in {cwd / RUNS}; start one with lab run")
        if run_id is None:
            return runs[-1]
        matching = [run for run in runs if run.id == run_id] or [
            run for run in runs if run_id in run.id
        ]
        if len(matching) == 1:
            return matching[0]
        ids = ", ".join(run.id for run in (matching or runs)[-5:])
        if matching:
            raise UsageError(f"{run_id} could be any of these runs: {ids}")
        raise UsageError(f"there is no run {run_id}; the latest are {ids}")

    def info(self) -> dict[str, Any]:
        """What state.json holds; empty where it cannot be read."""
        with contextlib.suppress(OSError, ValueError):
            info = json.loads((self.path / "state.json").read_text())
            if isinstance(info, dict):
                return info
        return {}

    @property
    def state(self) -> RunState:
        """running, finished, or died: its controller did before it could say how the run ended."""
        return run_state(self.path) or "died"

    def read_json(self, name: str) -> Any:
        """What one of the directory's files holds; None where it is not there or not whole."""
        with contextlib.suppress(OSError, ValueError):
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        return None

    def places(self) -> dict[str, Any]:
        """Where the run was: `master` (address:port, or None), and `nodes`: host and Python."""
        found: dict[str, Any] = {"master": None, "nodes": {}}
        with contextlib.suppress(OSError, ValueError), (self.path / "events.jsonl").open() as file:
            for line in file:
                event = json.loads(line)
                if event["type"] == "hello":
                    words = f"{event['host']}, Python {event['python']}"
                    found["nodes"][event["node"]] = words
                elif event["type"] == "run":
                    found["master"] = event["master"]
                    break
        return found

    def check_removable(self) -> None:
        """Raises UsageError where the run is running, or its directory is somewhere else."""
        if self.path.is_symlink():
            raise UsageError(
                f"{self.path} is a link to {self.path.readlink()}; remove the one or the other "
                "yourself"
            )
        if self.state == "running":
            raise UsageError(f"run {self.id} is running; end it first: lab stop {self.id}")

    def remove(self) -> None:
        """Remove all that is there of the run; links in it go, not what they point to.

        Raises:
            LabError: it cannot be removed.
        """
        self.check_removable()
        try:
            shutil.rmtree(self.path)
        except OSError as error:
            raise LabError(
                f"{error.filename or self.path} cannot be removed: {error.strerror}"
            ) from error

    def finish(self, verdict: Verdict) -> None:
        """Record the end.

        Raises:
            LabError: it cannot be written.
        """
        end = {"state": "finished", "exit_code": verdict.exit_code, "summary": verdict.summary}
        with explained(self.path):
            (self.path / RESERVE).unlink(missing_ok=True)
            write_json(self.path / "verdict.json", verdict.to_json())
            self._write_state(**self.info() | end)

    def begin_again(self, **facts: Any) -> None:
        """Running, and not ended: what was written of an end before goes."""
        with explained(self.path):
            (self.path / "verdict.json").unlink(missing_ok=True)
            past = ("exit_code", "summary")
            info = {name: value for name, value in self.info().items() if name not in past}
            self._write_state(**info | {"state": "running"} | facts)

    def note(self, **facts: Any) -> None:
        """Add to what state.json says of the run."""
        with explained(self.path):
            self._write_state(**self.info() | facts)

    def _write_state(self, **info: Any) -> None:
        write_json(self.path / "state.json", info)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say in one line that a run directory cannot be written."""
    try:
        yield
    except OSError as error:
        cure = "; free some space on its disk" if error.errno in (ENOSPC, EDQUOT) else ""
        raise LabError(
            f"the run directory {path} cannot be written: {error.strerror}{cure}"
        ) from error


@contextlib.contextmanager
def _nothing_half(path: Path) -> Iterator[None]:
    """Leave no part of a directory that could not be made whole."""
    try:
        yield
    except OSError:
        shutil.rmtree(path, ignore_errors=True)
        raise


class RunFiles:
    """A run's logs and events, as they come in. Its methods raise LabError where they cannot."""

    def __init__(self, run: RunDirectory) -> None:
        self._run = run
        self._files: dict[Path, FileIO] = {}

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        """Append to `<node>/rank<rank>.<stream>`, byte for byte what the rank wrote."""
        path = log_path(self._run, node, rank, stream)
        self._append(path, text.encode("utf-8", "surrogateescape"))

    def event(self, message: dict[str, Any]) -> None:
        """Append to events.jsonl, with the time (seconds since the epoch)."""
        line = json.dumps({"time": round(time.time(), 6), **message}) + "\n"
        self._append(self._run.path / "events.jsonl", line.encode())

    def _append(self, path: Path, data: bytes) -> None:
        left = memoryview(data)
        with explained(self._run.path):
            if path not in self._files:
                self._files[path] = path.open("ab", buffering=0)
            while left:  # a disk that is nearly full takes a part
                left = left[self._files[path].write(left) :]

    def close(self) -> None:
        """Nothing comes any more."""
        for file in self._files.values():
            file.close()


def log_path(run: RunDirectory, node: str, rank: int, stream: str) -> Path:
    """Where a rank's output is."""
    return run.path / node / f"rank{rank}.{stream}"
