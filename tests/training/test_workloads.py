"""Every job runs on local nodes and on containers, as its docstring says it does."""

import json
from collections.abc import Iterator

import pytest

from tests.conftest import Lab

SHORT = ("--steps", "2", "--batch-size", "16", "--save-every", "2")
JOBS = {
    "mlp": ("--layers", "4", "--samples", "40", "--parallel", "zero2"),
    "wine": ("--impl", "torch"),
    "digits": ("--sync-batchnorm",),
    "gpt": ("--parallel", "fsdp", "--layers", "1", "--sample", "3", "--report-every", "1"),
}


@pytest.fixture
def pair(lab: Lab) -> Iterator[Lab]:
    """`lab` in an empty folder, of whose containers nothing is left afterwards."""
    yield lab
    assert lab("down", "-t", "pair").returncode == 0


def trains(lab: Lab, on: str, job: str) -> None:
    """Run it on two nodes; look at what it prints and leaves."""
    words = ("run", "-t", "pair", "--on", on, "-m", f"lab.training.{job}", *SHORT, *JOBS[job])
    run = lab(*words, timeout=600)
    assert run.returncode == 0, run.stderr
    lines = [line.removeprefix("[0 node0] ") for line in run.stdout.splitlines()]
    assert lines[0].startswith(f"{job}: ")
    assert "2 x batch 16" in lines[0]
    directory = lab.runs()[-1]
    events = [json.loads(line) for line in (directory / "training.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["event"] == "report"] == [1, 2]
    assert [path.name for path in (directory / "checkpoints" / job).glob("step*")] == [
        "step-00000002"
    ]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("job", JOBS)
def test_on_local_nodes(lab: Lab, job: str) -> None:
    trains(lab, "local", job)


@pytest.mark.docker
@pytest.mark.timeout(1800)  # four runs, and the image may have to be built
def test_on_containers(pair: Lab) -> None:
    for job in JOBS:
        trains(pair, "docker", job)
