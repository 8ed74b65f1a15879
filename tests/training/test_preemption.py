"""A warned training saves at a step on which all ranks agree, and goes on bit by bit."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from lab.training import preemption
from lab.training.preemption import REQUEUE, Stop
from tests.ranks import RankPool
from tests.training.training_jobs import Job, Result, train

OPTIONS: dict[str, Any] = {"parallel": "ddp", "steps": 9, "report_every": 3, "save_every": 9}


def warned(folder: Path, warn: int | None, restarts: int) -> Result:
    """One beginning of a job of Slurm."""
    os.environ |= {REQUEUE: str(folder / "requeue"), "SLURM_RESTART_COUNT": str(restarts)}
    preemption.withdraw.cache_clear()  # another process, if this were one
    patch = mock.patch.object(preemption, "LOOK_WITHIN", 0)  # look after each step
    try:
        with patch:
            return train(folder, OPTIONS, Job(warn=warn))
    finally:
        del os.environ[REQUEUE], os.environ["SLURM_RESTART_COUNT"]


def test_it_saves_and_goes_on_as_if_nothing_had_been(ranks: RankPool, tmp_path: Path) -> None:
    whole = ranks.run(2, train, tmp_path / "whole", OPTIONS)[0]
    first = ranks.run(2, warned, tmp_path, 4, 0)
    assert [result.error for result in first] == ["", ""]
    # Warned in the fifth step, by the next one all know.
    assert [(event["event"], event["step"]) for event in first[0].events] == [
        *(("start", 0), ("report", 3), ("save", 5), ("end", 5))
    ]
    (tmp_path / "requeue").unlink()

    second = ranks.run(2, warned, tmp_path, None, 1)[0]
    assert second.events[0]["step"] == 5
    assert first[0].losses + second.losses == whole.losses
    for name, value in whole.parameters.items():
        assert torch.equal(second.parameters[name], value)
    assert not (tmp_path / "requeue").exists()


def test_a_warning_in_the_last_step_needs_no_other_beginning(
    ranks: RankPool, tmp_path: Path
) -> None:
    results = ranks.run(2, warned, tmp_path, 8, 0)
    assert [event["event"] for event in results[0].events].count("report") == 3
    assert not (tmp_path / "requeue").exists()


def joined(folder: Path, warn: int | None) -> Result:
    """One world of an elastic job: torchrun does not count that it begins again for a node."""
    os.environ["TORCHELASTIC_RUN_ID"] = "17.0"
    try:
        return warned(folder, warn, 0)
    finally:
        del os.environ["TORCHELASTIC_RUN_ID"]


def test_torchrun_that_begins_again_itself_needs_no_requeue(
    ranks: RankPool, tmp_path: Path
) -> None:
    ranks.run(2, joined, tmp_path, 4)
    assert (tmp_path / "requeue").exists()
    second = ranks.run(2, joined, tmp_path, None)[0]
    assert second.events[0]["step"] == 5, "it goes on"
    assert second.events[-1]["step"] == 9
    assert not (tmp_path / "requeue").exists()


def test_what_a_process_asks_for_itself_stays(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "requeue"
    monkeypatch.setenv(REQUEUE, str(file))
    for _ in range(2):  # it trains twice
        assert preemption.begun_again(is_main=True) == [False, False]
        file.touch()
    assert file.exists()


@pytest.mark.parametrize("warning", [signal.SIGUSR2, signal.SIGTERM])
def test_both_signals_warn_and_come_again_without_harm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, warning: signal.Signals
) -> None:
    """Slurm sends SIGTERM several times, the last ones when all is saved."""
    monkeypatch.setenv(REQUEUE, str(tmp_path / "requeue"))
    before = {number: signal.getsignal(number) for number in preemption.WARNINGS}
    try:
        with Stop(most=50) as stop:
            signal.raise_signal(warning)
            assert stop.requested
            stop.agree(True, 1, 1.0)
        signal.raise_signal(warning)
        for number, handler in before.items():
            signal.signal(number, handler)
        with Stop(most=50):
            pass
        assert signal.getsignal(signal.SIGTERM) == before[signal.SIGTERM], "it ends as ever"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def test_ranks_look_as_often_as_the_warning_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def look_after(seconds: float) -> int:
        stop = Stop(most=50)
        stop.agree(False, 10, seconds)
        return stop.look_after

    monkeypatch.delenv(REQUEUE, raising=False)
    assert look_after(600.0) == 50  # nobody warns
    monkeypatch.setenv(REQUEUE, "file")
    assert [look_after(seconds) for seconds in (0.01, 20.0, 200.0)] == [50, 5, 1]


SLOWLY = """
import os, runpy, time
from torch.optim.optimizer import register_optimizer_step_post_hook
if os.environ["WORLD_SIZE"] == "1":  # until there are two nodes
    register_optimizer_step_post_hook(lambda *_: time.sleep(0.3))
runpy.run_module("lab.training.wine", run_name="__main__", alter_sys=True)
"""


@pytest.mark.timeout(300)
def test_a_node_that_joins_under_torchrun_costs_no_step_and_no_requeue(tmp_path: Path) -> None:
    (tmp_path / "slowly.py").write_text(SLOWLY)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    argv = [sys.executable, "-m", "torch.distributed.run", "--nnodes=1:2", "--max-restarts=0"]
    argv += ["--rdzv-backend=c10d", "--rdzv-id=17.0", f"--rdzv-endpoint=127.0.0.1:{port}"]
    argv += ["--rdzv-conf=last_call_timeout=1", "slowly.py", "--steps", "200", "--checkpoints"]
    argv += ["saved", "--save-every", "200", "--evaluate-every", "0", "--events", "events.jsonl"]
    argv += ["--batch-size", "16", "--global-batch", "32"]
    env = {
        **os.environ,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # as in the job script
        "OMP_NUM_THREADS": "1",
        REQUEUE: str(tmp_path / "requeue"),
    }
    nodes = []
    try:
        nodes.append(subprocess.Popen(argv, cwd=tmp_path, env=env))
        while not (tmp_path / "events.jsonl").exists():
            assert nodes[0].poll() is None
            time.sleep(0.1)
        nodes.append(subprocess.Popen(argv, cwd=tmp_path, env=env))
        assert [node.wait() for node in nodes] == [0, 0]
    finally:
        for node in nodes:
            node.terminate()
            node.wait()
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["world_size"] for event in events if event["event"] == "start"] == [1, 2]
    steps = [event["step"] for event in events if event["event"] == "report"]
    assert steps == list(range(1, 201)), "none is missing, none repeated"
    assert not (tmp_path / "requeue").exists()
