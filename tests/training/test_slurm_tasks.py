"""Plain srun: its tasks are ranks, not trainings that know nothing of each other."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lab.errors import UsageError
from lab.training.slurm_tasks import name_as_launchers_do, tasks_of_nodes

TASKS = {
    "SLURM_JOB_ID": "20007",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NODELIST": "ab[1-2]",
    "SLURM_STEP_NUM_TASKS": "3",
    "SLURM_STEP_TASKS_PER_NODE": "2,1",
}


def test_tasks_of_nodes() -> None:
    assert tasks_of_nodes("1") == [1]
    assert tasks_of_nodes("4(x2),3") == [4, 4, 3]


def test_a_step_of_one_task_is_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {**TASKS, "SLURM_STEP_NUM_TASKS": "1"})
    name_as_launchers_do()
    assert "RANK" not in os.environ


def test_what_a_launcher_has_said_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {**TASKS, "RANK": "1", "WORLD_SIZE": "2"})
    name_as_launchers_do()
    assert os.environ["WORLD_SIZE"] == "2"


def test_without_the_first_node_s_name_it_says_what_to_set(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    task = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "PATH": str(tmp_path)}
    monkeypatch.setattr(os, "environ", {**TASKS, **task})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="set MASTER_ADDR"):
        name_as_launchers_do()


def test_three_tasks_train_one_model(tmp_path: Path) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        '#!/bin/sh\n[ "$*" = "show hostnames ab[1-2]" ] && echo localhost && echo b\n'
    )
    scontrol.chmod(0o755)
    plain = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LAB_RUN_DIR")}
    env = {**plain, **TASKS, "PATH": f"{tmp_path}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    env |= {"SLURM_JOB_ID": str(os.getpid()), "PYTHONPATH": str(Path(__file__).parents[2])}
    words = ["-m", "lab.training.mlp", "--steps", "2", "--save-every", "0", "--samples", "99"]
    tasks = [
        subprocess.Popen(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**env, "SLURM_PROCID": str(n), "SLURM_NODEID": node, "SLURM_LOCALID": local},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n, (node, local) in enumerate([("0", "0"), ("0", "1"), ("1", "0")])
    ]
    try:
        ends = [task.communicate(timeout=280) for task in tasks]
    finally:
        for task in tasks:
            task.kill()
            task.wait()
    assert [task.returncode for task in tasks] == [0, 0, 0], ends
    assert "3 x batch 32, ddp (ours, gloo)" in ends[0][0]
    assert ends[1][0] == ends[2][0] == ""
