"""What a submitted run leaves in its directory."""

import os
from pathlib import Path

import pytest

from lab.batch.run import ENVIRONMENT, BatchRun
from lab.runs import Job
from lab.topology import parse_topology

SECRET = "s3cret value; $(id)"


def test_a_token_is_in_one_file_that_is_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sbatch = tmp_path / "bin/sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text("#!/bin/sh\necho 17\n")
    sbatch.chmod(0o755)
    monkeypatch.setenv("PATH", f"{sbatch.parent}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "train.py").touch()
    topology = parse_topology("name: one\nnodes: 1\non: slurm")
    job = Job(command=("train.py",), cwd=tmp_path, env={"HF_TOKEN": SECRET})
    run = BatchRun.submit(topology, job)
    assert run.job_id == "17"
    files = [path for path in run.directory.path.rglob("*") if path.is_file()]
    (holds,) = [path for path in files if b"s3cret" in path.read_bytes()]
    assert holds.name == ENVIRONMENT
    assert holds.stat().st_mode & 0o777 == 0o600
    shown = os.popen(f'. {holds}; printf %s "$HF_TOKEN"').read()
    assert shown == SECRET
