"""`lab bench slurm`, where somebody has had enough of it."""

import signal
from pathlib import Path

import pytest

from lab.bench import slurm
from lab.topology import parse_topology


class Cluster:
    """Takes a job; Ctrl-C comes while it does, or when it is asked for it."""

    def __init__(self, amid: str) -> None:
        self.cancelled: list[str] = []
        self._amid = amid

    def submit(self, *_: object) -> str:
        if self._amid == "submit":
            signal.raise_signal(signal.SIGINT)
        return "7"

    def states(self, _: list[str]) -> object:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError

    def cancel(self, job: str) -> None:
        self.cancelled.append(job)


@pytest.mark.parametrize("amid", ["submit", "states"])
def test_no_job_is_left_after_ctrl_c(
    amid: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(amid)
    monkeypatch.setattr(slurm, "slurm_of", lambda *_: cluster)
    with pytest.raises(KeyboardInterrupt):
        slurm._by_hand(parse_topology("{nodes: 2, on: slurm}"), tmp_path)
    assert cluster.cancelled == ["7"]
