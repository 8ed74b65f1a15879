"""Whose code a file is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lab
from lab.rank.frames import STANDARD_LIBRARY, is_users


@pytest.mark.parametrize(
    ("file", "users"),
    [
        ("/home/me/train.py", True),
        ("/home/me/my-site-packages.py", True),
        (f"{STANDARD_LIBRARY}/json/decoder.py", False),
        ("/opt/venv/lib/python3.12/site-packages/torch/nn/functional.py", False),
        ("/usr/local/lib/python3.12/dist-packages/torch/nn/functional.py", False),
        ("/usr/lib/python3/dist-packages/numpy/__init__.py", False),
        ("<frozen runpy>", False),
    ],
)
def test_installed_packages_are_none_of_the_users_code(file: str, users: bool) -> None:
    assert is_users(file) is users


def test_what_lab_runs_is_known_by_a_link_to_it_too(tmp_path: Path) -> None:
    package = Path(lab.__file__).resolve().parent
    (tmp_path / "code").mkdir()
    (tmp_path / "code/lab").symlink_to(package)
    files = [f"{place}/rank/probe.py" for place in (package, tmp_path / "code/lab")]
    code = "import sys\nfrom lab.rank.frames import is_labs\nprint(*map(is_labs, sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *files],
        env={**os.environ, "PYTHONPATH": str(tmp_path / "code")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["True", "True"]
