"""Where the kernel counts whom it killed for want of memory: in containers, in jobs of Slurm."""

from pathlib import Path

import pytest

from lab.node import memory

JOB = "system.slice/slurmstepd.scope/job_5"
TASK = f"{JOB}/step_0/user/task_1"


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of /sys/fs/cgroup."""
    for name, path in (("V2", ""), ("V1", "memory"), ("OWN", "own")):
        monkeypatch.setattr(memory, name, tmp_path / path)
    return tmp_path


def put(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("_", ".", 1)).write_text(text)


def test_a_container_has_what_is_mounted(groups: Path) -> None:
    put(groups, own="0::/\n", memory_events="oom 1\noom_kill 2\n", memory_max="4096\n")
    assert (memory.oom_kills(), memory.memory_limit()) == (2, 4096)


def test_a_job_has_its_own_below(groups: Path) -> None:
    put(groups, own=f"0::/{TASK}\n", memory_events="oom_kill 7\n")
    put(groups / TASK, memory_events="oom_kill 1\n", memory_max="max\n")
    put(groups / JOB, memory_events="oom_kill 3\n", memory_max="8192\n")
    assert (memory.oom_kills(), memory.memory_limit()) == (1, 8192)


def test_version_1_and_a_path_that_is_not_mounted(groups: Path) -> None:
    put(groups, own="9:memory:/slurm/uid_1/job_5\n4:cpu,cpuacct:/other\n0::/x\n")
    put(groups / "memory", memory_oom_control="oom_kill 5\n", memory_limit_in_bytes=f"{1 << 62}\n")
    assert (memory.oom_kills(), memory.memory_limit()) == (5, None)
    put(groups / "memory/slurm/uid_1/job_5", memory_oom_control="under_oom 0\noom_kill 0\n")
    put(groups / "memory/slurm/uid_1/job_5", memory_limit_in_bytes="4096\n")
    assert (memory.oom_kills(), memory.memory_limit()) == (0, 4096)


def test_nothing_is_known(groups: Path) -> None:
    put(groups, own="nonsense")
    assert (memory.oom_kills(), memory.memory_limit()) == (0, None)
