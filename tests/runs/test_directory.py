"""Run directories: which of them is the latest."""

from pathlib import Path

from lab.runs.directory import RunDirectory
from lab.runs.job import Job
from lab.topology import load_topology


def test_runs_of_one_second_keep_their_order(tmp_path: Path) -> None:
    (tmp_path / "job.py").touch()
    made = []
    for name in ("solo", "pair", "quad") * 8:
        topology = load_topology(name, on="local")
        job = Job.from_command_line(["job.py"], topology=topology, cwd=tmp_path)
        made.append(RunDirectory.create(topology, job).id)
        assert RunDirectory.find(tmp_path, None).id == made[-1]
    assert [run.id for run in RunDirectory.all(tmp_path)] == made
