"""Which files and variables of a node count."""

from pathlib import Path

import pytest

from lab.node import software
from lab.node.software import code_of, variables


def test_code_is_the_projects_own_files(tmp_path: Path) -> None:
    for name in ("train.py", "conf/a.yaml", "venv/lib/x.py", ".git/hook.py", "runs/1/job.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "weights.bin").write_bytes(b"0")

    code = code_of(str(tmp_path))
    assert code is not None
    assert set(code["files"]) == {"train.py", "conf/a.yaml"}
    before = code["hash"]
    (tmp_path / "conf/a.yaml").write_text("b")
    after = code_of(str(tmp_path))
    assert after is not None
    assert after["hash"] != before
    assert after["files"]["train.py"] == code["files"]["train.py"]


def test_no_folder_is_not_an_empty_one(tmp_path: Path) -> None:
    assert code_of(str(tmp_path / "none")) is None
    empty = code_of(str(tmp_path))
    assert empty is not None
    assert empty["files"] == {}


def test_variables_that_libraries_obey_and_no_secrets() -> None:
    env = {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "2", "AWS_SECRET_ACCESS_KEY": "x", "HOME": "/"}
    assert variables(env) == {"NCCL_DEBUG": "INFO", "OMP_NUM_THREADS": "2"}


def test_a_folder_of_data_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.py").write_text("a")
    (tmp_path / "data").mkdir()
    for number in range(10):
        (tmp_path / f"data/{number}.json").write_text("{}")
    monkeypatch.setattr(software, "MOST_NAMES", 5)
    code = code_of(str(tmp_path))
    assert code is not None
    assert set(code["files"]) == {"a.py"}
