"""What a submitted run leaves in its directory, and what is made of that."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from lab.batch.run import ENVIRONMENT, BatchRun, refresh
from lab.node.protocol import Message
from lab.runs.job import Job
from lab.runs.verdict import Verdict
from lab.topology import parse_topology

IMPATIENT = 'kill -INT $PPID; sleep 1; echo "$@" >>{}/cancelled'
"""An scancel amid which Ctrl-C comes again."""
SECRET = "s3cret value; $(id)"


@pytest.fixture
def submitted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BatchRun:
    """A run, by an sbatch that takes it, with a squeue that says that it runs."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, says in (("sbatch", "17"), ("squeue", "17|RUNNING|None|host0")):
        (commands / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "train.py").touch()
    topology = parse_topology("name: one\nnodes: 1\non: slurm")
    job = Job(command=("train.py",), cwd=tmp_path, env={"HF_TOKEN": SECRET})
    return BatchRun.submit(topology, job)


def test_a_token_is_in_one_file_that_is_private(submitted: BatchRun) -> None:
    assert submitted.job_id == "17"
    files = [path for path in submitted.directory.path.rglob("*") if path.is_file()]
    (holds,) = [path for path in files if b"s3cret" in path.read_bytes()]
    assert holds.name == ENVIRONMENT
    assert holds.stat().st_mode & 0o777 == 0o600
    show = ["sh", "-c", '. "$1"; printf %s "$HF_TOKEN"', "sh", str(holds)]
    assert subprocess.run(show, capture_output=True, text=True, check=True).stdout == SECRET


def test_ctrl_c_while_sbatch_takes_the_job_leaves_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    for name, does in (
        ("sbatch", "kill -INT $PPID; sleep 0.3; echo 17"),  # its answer comes after the signal
        ("scancel", IMPATIENT.format(tmp_path)),
    ):
        (commands / name).write_text(f"#!/bin/sh\n{does}\n")
        (commands / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "train.py").touch()
    topology = parse_topology("name: one\nnodes: 1\non: slurm")
    with pytest.raises(KeyboardInterrupt):
        BatchRun.submit(topology, Job(command=("train.py",), cwd=tmp_path))
    assert (tmp_path / "cancelled").read_text() == "17\n"
    assert list((tmp_path / "runs").glob("*/state.json")) == []


def test_a_second_ctrl_c_lets_the_job_be_cancelled(submitted: BatchRun, tmp_path: Path) -> None:
    scancel = tmp_path / "bin/scancel"
    scancel.write_text(f"#!/bin/sh\n{IMPATIENT.format(tmp_path)}\n")
    scancel.chmod(0o755)
    with pytest.raises(KeyboardInterrupt):
        submitted.cancel()
    assert (tmp_path / "cancelled").read_text() == "17\n"


def test_a_job_that_is_queued_anew_has_no_end(submitted: BatchRun) -> None:
    directory = submitted.directory
    directory.finish(Verdict("exit", 3, "rank 0 on node0: exited with code 3"))
    directory.begin_again()
    assert directory.read_json("verdict.json") is None
    assert directory.info()["state"] == "running"
    assert {"exit_code", "summary"}.isdisjoint(directory.info())
    assert directory.info()["slurm"] == {"job": "17"}


@pytest.mark.timeout(60)
def test_a_job_that_was_queued_anew_is_not_waited_for(submitted: BatchRun) -> None:
    run = submitted.directory.path
    began = {"at": 1.0, "type": "started", "node": "node0", "rank": 0, "restart": 0}
    (run / "node0/rank0.events.jsonl").write_text(json.dumps(began) + "\n")
    (run / "ended").write_text("1\n")  # as of a job that has lost a node
    refresh([submitted.directory])
    assert submitted.directory.state == "running"


class Interrupted:
    """A listener that Ctrl-C comes to, once."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        self.said.append(text)
        if len(self.said) == 1:
            raise KeyboardInterrupt

    def event(self, message: Message) -> None:
        pass


@pytest.mark.timeout(60)
def test_after_an_interrupt_nothing_is_said_twice(submitted: BatchRun) -> None:
    out = submitted.directory.path / "node0/rank0.out"
    out.write_text("hello\n")
    listener = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        submitted.follow([listener])
    (submitted.directory.path / "ended").write_text("0\n")
    with out.open("a") as file:
        file.write("bye\n")
    submitted.follow([listener])
    assert listener.said == ["hello\n", "bye\n"]
