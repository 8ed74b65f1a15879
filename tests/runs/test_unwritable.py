"""A run directory that takes no files is told in a line, and the run does not stay `running`."""

import errno
import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from lab.errors import LabError
from lab.runs.directory import RunDirectory
from lab.runs.execute import execute
from lab.runs.job import Job
from lab.topology import load_topology


def full_disk(_run: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def no_file_for_events(run: Path) -> None:
    (run / "events.jsonl").mkdir()


@pytest.mark.parametrize(
    ("prepare", "words"),
    [
        (full_disk, "cannot be written: No space left on device; free some space"),
        (no_file_for_events, "cannot be written: Is a directory"),
    ],
)
def test_what_cannot_be_written_before_the_start(
    prepare: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    (tmp_path / "job.py").touch()
    topology = load_topology("solo", on="local")
    job = Job.from_command_line(["job.py"], topology=topology, cwd=tmp_path)
    with pytest.raises(LabError, match=words):
        execute(topology, job, nullcontext(lambda _step: None), prepare=prepare)
    (run,) = RunDirectory.all(tmp_path)
    assert run.state == "finished"
    assert words in run.info()["summary"]
    assert run.read_json("verdict.json")["kind"] == "not-started"
