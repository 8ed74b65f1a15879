"""`lab bench slurm`, where somebody has had enough of it."""

from pathlib import Path

import pytest

from lab.bench import slurm
from lab.topology import parse_topology


class Cluster:
    """Takes a job, and is interrupted when it is asked for it."""

    def __init__(self) -> None:
        self.cancelled: list[str] = []

    def submit(self, *_: object) -> str:
        return "7"

    def states(self, _: list[str]) -> object:
        raise KeyboardInterrupt

    def cancel(self, job: str) -> None:
        self.cancelled.append(job)


def test_no_job_is_left_after_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    monkeypatch.setattr(slurm, "slurm_of", lambda *_: cluster)
    with pytest.raises(KeyboardInterrupt):
        slurm._by_hand(parse_topology("{nodes: 2, on: slurm}"), tmp_path)
    assert cluster.cancelled == ["7"]
