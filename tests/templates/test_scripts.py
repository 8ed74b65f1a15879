"""The scripts that `lab new` writes: they run, agree with each other, and go on after a crash."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from lab.templates import train
from lab.templates.compose import Own, compose
from lab.templates.ddp import wrap
from lab.templates.mlp import Model
from tests.conftest import Lab

ONE_EPOCH = ["--epochs", "1", "--batch-size", "240", "--micro-batch", "40", "--log-every", "1"]
SAVING = ["--save-every", "2"]
ENV = {"OMP_NUM_THREADS": "1"}
CRASH = """import os, runpy, signal, sys, torch

write = torch.save
saved = 0


def die_while_saving(state, file):
    global saved
    saved += 1
    if saved == 3:
        file.write(b"half of it")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    write(state, file)


torch.save = die_while_saving
runpy.run_path("train.py", run_name="__main__")
"""
MODEL = """from torch import nn


class MyModel(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 4))
"""


def run(folder: Path, *command: str, **env: str) -> str:
    """Run a command to its good end; what it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **ENV, **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def losses(output: str) -> list[str]:
    """The lines of the steps, without lab's prefix."""
    lines = [line.removeprefix("[0 node0] ") for line in output.splitlines()]
    return [line for line in lines if line.startswith("step ")]


def assert_equal(one: Path, other: Path, relative: float = 0, absolute: float = 0) -> None:
    """Weights, moments and step of two checkpoints."""
    states = [torch.load(path, weights_only=True) for path in (one, other)]
    tensors = [(state["model"], state["optimizer"]["state"], state["step"]) for state in states]
    torch.testing.assert_close(*tensors, rtol=relative, atol=absolute)


@pytest.mark.parametrize(
    ("method", "place"),
    [("fsdp", "torchrun"), pytest.param("ddp", "docker", marks=pytest.mark.docker)],
)
@pytest.mark.timeout(900)
def test_every_launcher_trains_the_same_and_a_crash_costs_no_bit(
    lab: Lab, method: str, place: str
) -> None:
    lab.script(compose("train.py", method, "mlp"), "train.py")
    lab.script(CRASH, "crash.py")
    lab_run = ["run", "-t", "pair", "--env", "OMP_NUM_THREADS=1"]
    whole = [*ONE_EPOCH, *SAVING, "--checkpoint", "whole.pt"]
    if place == "torchrun":
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        output = run(lab.cwd, *torchrun, "--nproc-per-node", "2", "train.py", *whole)
    else:
        try:
            done = lab(*lab_run, "train.py", *whole, timeout=300)
        finally:
            lab("down", "-t", "pair")
        assert done.returncode == 0, done.stderr
        output = done.stdout
    assert len(losses(output)) == 10

    # Rank 0 dies by SIGKILL while it writes the third checkpoint: the second is still whole.
    crashed = lab(*lab_run, "--on", "local", "crash.py", *ONE_EPOCH, *SAVING, timeout=300)
    assert crashed.returncode == 128 + 9, crashed.stderr
    resumed = lab(*lab_run, "--on", "local", "train.py", *ONE_EPOCH, *SAVING, timeout=300)
    assert resumed.returncode == 0, resumed.stderr
    assert "4 of 10 steps are done" in resumed.stdout
    assert losses(resumed.stdout) == losses(output)[4:]
    assert_equal(lab.cwd / "checkpoints/train.pt", lab.cwd / "whole.pt")


def test_any_number_of_ranks_and_either_method_take_the_same_steps(tmp_path: Path) -> None:
    own = Own("mymodule", "MyModel", has_dataset=False, beside=True)
    for method in ("ddp", "fsdp"):
        (tmp_path / f"{method}.py").write_text(compose(f"{method}.py", method, own))
    (tmp_path / "mymodule.py").write_text(MODEL)
    alone = losses(run(tmp_path, sys.executable, "ddp.py", *ONE_EPOCH))
    assert len(alone) == 10

    # Two tasks of Slurm, which has no variables of torchrun; and then the one goes on alone.
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        '#!/bin/sh\n[ "$*" = "show hostnames ab[1-2]" ] && echo localhost && echo b\n'
    )
    scontrol.chmod(0o755)
    slurm = {
        **os.environ,
        **ENV,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": str(os.getpid()),
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NODELIST": "ab[1-2]",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    }
    tasks = [
        subprocess.Popen(
            [sys.executable, "fsdp.py", *ONE_EPOCH],
            cwd=tmp_path,
            env={
                **slurm,
                "SLURM_PROCID": str(rank),
                "SLURM_LOCALID": "0",
                "SLURM_NODEID": str(rank),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        ends = [task.communicate(timeout=300) for task in tasks]
    finally:
        for task in tasks:
            task.kill()
            task.wait()
    assert [task.returncode for task in tasks] == [0, 0], ends
    together = losses(ends[0][0])
    numbers = [[float(line.split()[3]) for line in lines] for lines in (alone, together)]
    torch.testing.assert_close(*map(torch.tensor, numbers), rtol=1e-5, atol=2e-6)
    assert losses(ends[1][0]) == []
    saved = tmp_path / "checkpoints"
    assert_equal(saved / "ddp.pt", saved / "fsdp.pt", 1e-4, 1e-6)
    more = run(tmp_path, sys.executable, "fsdp.py", *ONE_EPOCH, "--epochs", "2")
    assert "10 of 20 steps are done" in more


def test_it_goes_on_with_the_same_samples_and_the_rate_that_is_asked_for_or_not_at_all(
    tmp_path: Path,
) -> None:
    """With another batch size the steps that are done had other samples than it would skip."""
    store = dist.HashStore()  # type: ignore[attr-defined]  # public, absent from __all__
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = wrap(Model(), torch.device("cpu"))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        plan = {"batch size": 96, "seed": 0, "samples": 2400}
        path = tmp_path / "checkpoint.pt"
        assert train.load(path, model, optimizer, plan) == 0
        train.save(path, model, optimizer, 7, plan)
        other = torch.optim.AdamW(model.parameters(), lr=0.2)
        assert train.load(path, model, other, plan) == 7
        assert other.param_groups[0]["lr"] == 0.2
        for name in plan:
            with pytest.raises(SystemExit, match="give another --checkpoint"):
                train.load(path, model, other, {**plan, name: 5})
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("env", "visible", "device"),
    [
        ({}, 0, "cpu"),
        ({}, 1, "cuda:0"),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 2, "cuda:1"),
        ({"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, 1, "cpu"),
        ({"srun": "4", "SLURM_LOCALID": "3"}, 4, "cuda:3"),
        ({"srun": "4", "SLURM_LOCALID": "3"}, 2, "cpu"),
        ({"srun": "4", "SLURM_LOCALID": "3", "SLURM_GPUS_ON_NODE": "4"}, 1, "cuda:0"),
        ({"srun": "4", "SLURM_LOCALID": "3", "SLURM_GPUS_ON_NODE": "1"}, 1, "cpu"),
    ],
)
def test_nccl_only_with_a_gpu_for_each_rank_of_the_node(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], visible: int, device: str
) -> None:
    environ = dict(env)
    if "srun" in env:
        tasks = {"STEP_ID": "0", "PROCID": "5", "STEP_NUM_TASKS": "6", "NODEID": "1", "JOB_ID": "7"}
        environ |= {f"SLURM_{name}": value for name, value in tasks.items()}
        environ |= {"SLURM_STEP_TASKS_PER_NODE": f"2,{env['srun']}(x2)", "MASTER_ADDR": "a"}
    monkeypatch.setattr(os, "environ", environ)
    made: list[str] = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", lambda _: None)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **_: made.append(backend))
    assert train.join() == torch.device(device)
    assert made == ["gloo" if device == "cpu" else "nccl"]


@pytest.mark.parametrize(("method", "model"), [("ddp", "cnn"), ("fsdp", "gpt")])
def test_the_other_models_learn(tmp_path: Path, method: str, model: str) -> None:
    (tmp_path / "train.py").write_text(compose("train.py", method, model))
    epoch = ["--epochs", "1", "--log-every", "1", "--micro-batch", "48", "--lr", "0.01"]
    lines = losses(run(tmp_path, sys.executable, "train.py", *epoch))
    first, last = (float(lines[index].split()[3]) for index in (0, -1))
    assert last < first - 0.3


@pytest.mark.parametrize(
    ("words", "cure"),
    [
        ("--batch-size 97", "--batch-size 97 must be a multiple of --micro-batch 4 x 2 ranks"),
        ("--batch-size 4000", "more than the 2400 samples there are"),
        ("--micro-batch 0", "2"),
        ("--save-every 0", "2"),
    ],
)
def test_bad_numbers_are_refused(monkeypatch: pytest.MonkeyPatch, words: str, cure: str) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py", *words.split()])
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    with pytest.raises(SystemExit, match=cure):
        train.train(train.parse(), torch.device("cpu"))


@pytest.mark.parametrize("rank", [0, 1])
def test_what_ranks_before_these_have_asked_for_is_taken_back(
    rank: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "requeue").touch()
    monkeypatch.setattr(train, "REQUEUE", str(tmp_path / "requeue"))
    monkeypatch.setattr(dist, "get_rank", lambda: rank)
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR2, signal.SIGTERM)}
    try:
        train.listen()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert (tmp_path / "requeue").exists() == (rank != 0)
