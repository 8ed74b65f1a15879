"""The wheel carries what it needs: installed elsewhere, it brings nodes up and runs on them."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import Lab

ROOT = Path(__file__).parent.parent


@pytest.mark.docker
@pytest.mark.timeout(600)
def test_the_wheel_works_in_a_fresh_venv_in_another_folder(lab: Lab, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir"]
    subprocess.run([*build, str(tmp_path / "dist"), str(ROOT)], check=True, capture_output=True)
    (wheel,) = (tmp_path / "dist").glob("multinode_lab-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "lab/assets/docs/recipe.md" in names
    ours = {name for name in names if name.startswith("lab/") and "/assets/" not in name}
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "lab"]
    told = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = {name for name in told.split() if (ROOT / name).exists()}
    assert ours == files, "nothing else, and nothing less"
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    subprocess.run([venv / "bin/pip", "install", "-qq", str(wheel)], check=True)

    def installed(*argv: str) -> str:
        env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        done = subprocess.run(
            [venv / "bin/lab", *argv],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "script.py").write_text("import os, torch; print('rank', os.environ['RANK'])")
    try:
        assert "pair is up on docker: node0, node1" in installed("up", "-t", "pair")
        lines = installed("run", "-t", "pair", "script.py").splitlines()
        assert sorted(lines) == ["[0 node0] rank 0", "[1 node1] rank 1"]
        table = installed("run", "-t", "pair", "-m", "lab.training.wine", "--epochs", "1")
        assert "samples to train on" in table
        assert installed("exec", "-t", "pair", "node1", "hostname") == "node1\n"
        assert installed("new", "train.py").startswith("python train.py\n")
        # The controller needs no torch of its own.
        torch = [str(venv / "bin/python"), "-c", "import torch"]
        assert subprocess.run(torch, capture_output=True, check=False).returncode != 0
    finally:
        installed("down", "-t", "pair")
