"""What a node tells of itself."""

import ast
import os
import socket
import sys
from importlib import metadata, resources
from pathlib import Path

import pytest

from lab.node.facts import collect


def test_what_this_machine_is() -> None:
    facts = collect("~")

    assert facts["hostname"] == socket.gethostname()
    assert facts["python"] == ".".join(map(str, sys.version_info[:3]))
    assert facts["torch"] == metadata.version("torch")
    assert 0 < facts["cores"] <= (os.cpu_count() or 1)
    assert 0 < facts["memory_free"] <= facts["memory"]
    assert facts["disk_free"] > 0
    assert facts["writable"] is True
    assert facts["os"]


def test_a_folder_that_is_not_there_yet_counts_as_the_one_above(tmp_path: Path) -> None:
    assert collect(str(tmp_path / "not/there"))["disk_free"] > 0
    assert collect("/proc/self/nothing")["writable"] is False


def test_gpus_are_what_nvidia_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvidia-smi"
    rows = "NVIDIA H200, 143771, 12, 550.1\nNVIDIA A100-SXM4, 40960, 0, 550.1\n"
    fake.write_text(f"#!/bin/sh\ncat <<'EOF'\n{rows}EOF\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    one, two = collect("/")["gpus"]

    expected = {"memory": 143771 << 20, "memory_used": 12 << 20, "driver": "550.1"}
    assert one == {"name": "NVIDIA H200", **expected}
    assert two["name"] == "NVIDIA A100-SXM4"


@pytest.mark.parametrize("script", ["exit 9", "echo No devices were found"])
def test_a_driver_that_does_not_work_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    fake = tmp_path / "nvidia-smi"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    assert collect("/")["gpus"] == []


@pytest.mark.parametrize("module", ["facts", "memory"])
def test_pythons_that_are_too_old_for_lab_can_be_asked(module: str) -> None:
    source = (resources.files("lab.node") / f"{module}.py").read_text()
    tree = ast.parse(source, feature_version=(3, 7))
    assert any(isinstance(n, ast.ImportFrom) and n.module == "__future__" for n in tree.body)
