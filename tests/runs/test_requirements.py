"""`lab run --requirements`: installed once for each content, never half, and torch stays."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from lab.node.processes import started
from tests.conftest import Lab

IMPORTS = "import {module}, sys; print('from', {module}.__file__)"


def make_wheel(folder: Path, name: str, version: str = "1.0", requires: str = "") -> None:
    """A wheel with one module, and a command of the same name that says hello."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    if requires:
        metadata += f"Requires-Dist: {requires}\n"
    folder.mkdir(exist_ok=True)
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}.py", "def hello():\n    print('hello')\n")
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{name}={name}:hello\n")
        wheel.writestr(f"{info}/RECORD", "")


class Requiring:
    """`lab run --requirements` with wheels of our own, and a cache of our own."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.cache = lab.cwd / "cache"
        self.wheels = lab.cwd / "wheels"
        self.env: Mapping[str, str] = {
            "XDG_CACHE_HOME": str(self.cache),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.wheels),
        }
        make_wheel(self.wheels, "labtestone")

    def words(self, *words: str, wanted: str = "labtestone", on: str = "local") -> list[str]:
        """The command line; `wanted` is what the requirements file says."""
        (self.lab.cwd / "wanted.txt").write_text(f"{wanted}\n")
        return ["run", "-t", "pair", "--on", on, "--requirements", "wanted.txt", *words]

    def __call__(self, *words: str, wanted: str = "labtestone") -> subprocess.CompletedProcess[str]:
        return self.lab(*self.words(*words, wanted=wanted), env=self.env)

    def venvs(self) -> list[Path]:
        """All that the cache has of virtual environments, whole or not."""
        return sorted((self.cache / "multinode-lab/venvs").glob("*"))


@pytest.fixture
def requiring(lab: Lab) -> Requiring:
    return Requiring(lab)


def test_packages_are_there_once_for_each_content(requiring: Requiring) -> None:
    script = requiring.lab.script(IMPORTS.format(module="labtestone") + "\nimport torch, lab")
    first = requiring(script)
    assert first.returncode == 0, first.stderr
    (venv,) = requiring.venvs()
    assert all(f"from {venv}/venv/" in line for line in first.stdout.splitlines())
    assert len(first.stdout.splitlines()) == 2
    assert "installing the packages of wanted.txt" in first.stderr

    made = (venv / "ready").stat().st_mtime_ns
    again = requiring(script, wanted="# the same\nlabtestone")
    assert again.returncode == 0
    assert "installing" not in again.stderr
    assert requiring.venvs() == [venv]
    assert (venv / "ready").stat().st_mtime_ns == made

    make_wheel(requiring.wheels, "labtesttwo")
    other = requiring(script, wanted="labtestone\nlabtesttwo")
    assert other.returncode == 0
    assert len(requiring.venvs()) == 2
    without = requiring.lab("run", "-t", "pair", "--on", "local", script, env=requiring.env)
    assert without.returncode == 1  # a run has what its own command names
    assert "lab run --requirements requirements.txt" in without.stderr.splitlines()[-1]


API = """
from lab import run

def work():
    import labtestone
    return labtestone.__name__

if __name__ == "__main__":
    print(run(work, "solo", on="local", requirements="wanted.txt", quiet=True).results)
"""


def test_from_python(requiring: Requiring) -> None:
    requiring.words()  # writes the file
    program = [sys.executable, requiring.lab.script(API)]
    env = {**os.environ, **requiring.env}
    cwd = requiring.lab.cwd
    done = subprocess.run(program, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    assert done.stdout == "('labtestone',)\n", done.stderr


def test_its_commands_are_found(requiring: Requiring) -> None:
    done = requiring("--no-python", "labtestone")
    assert sorted(done.stdout.splitlines()) == ["[0 node0] hello", "[1 node1] hello"]


def test_torch_stays(requiring: Requiring) -> None:
    script = requiring.lab.script("import torch; print(torch.__file__)")
    loose = requiring(script, wanted="torch>=2\nlabtestone")
    assert loose.returncode == 0, loose.stderr
    assert not list(requiring.venvs()[0].glob("venv/lib/*/site-packages/torch*"))
    make_wheel(requiring.wheels, "labtestold", requires="torch<2")
    make_wheel(requiring.wheels, "torch", "1.0")
    for wanted, reason in (("torch==1.0", "torch==1.0"), ("labtestold", "depends on torch<2")):
        strict = requiring(script, wanted=wanted)
        assert strict.returncode == 1
        last = strict.stderr.splitlines()[-1]
        assert last.startswith("lab: error: wanted.txt asks for another torch than the nodes' ")
        assert reason in last
    assert len(requiring.venvs()) == 1


def test_a_failure_leaves_nothing(requiring: Requiring) -> None:
    done = requiring(requiring.lab.script(""), wanted="labtestone\nlab-test-not-there")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "lab: error: the packages of wanted.txt cannot be installed: Could not find a version that "
        "satisfies the requirement lab-test-not-there"
    )
    assert requiring.venvs() == []
    told = json.loads((requiring.lab.runs()[0] / "verdict.json").read_text())
    assert told["kind"] == "not-started"


SLOW_BUILD = """
import os, pathlib, time
new = pathlib.Path({began!r} + ".new")
new.write_text(f"{{os.getpid()}} {{os.getppid()}}")
new.rename({began!r})
time.sleep(600)
"""


@pytest.fixture
def slow(requiring: Requiring) -> Iterator[Requiring]:
    """One package more, whose build begins with a file `began`, and does not end.

    The file names the build's process and its parent, which is pip.
    """
    began = str(requiring.lab.cwd / "began")
    with zipfile.ZipFile(requiring.wheels / "labtestslow-1.0.zip", "w") as source:
        source.writestr("labtestslow-1.0/backend.py", SLOW_BUILD.format(began=began))
        source.writestr(
            "labtestslow-1.0/pyproject.toml",
            "[build-system]\nrequires = []\nbuild-backend = 'backend'\nbackend-path = ['.']\n",
        )
    yield requiring
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        os.kill(int(Path(began).read_text().split()[0]), signal.SIGKILL)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_install_is_not_used(slow: Requiring, number: int) -> None:
    lab = slow.lab
    script = lab.script(IMPORTS.format(module="labtestone"))
    process = lab.start(*slow.words(script, wanted="labtestone\nlabtestslow"), env=slow.env)
    wait_until((lab.cwd / "began").exists)
    process.send_signal(number)
    process.communicate(timeout=30)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert slow.venvs() == []
        return
    pip = int((lab.cwd / "began").read_text().split()[1])
    wait_until(lambda: started(pip) is None)
    (half,) = slow.venvs()  # nobody was left to remove it
    assert not (half / "ready").exists()
    make_wheel(slow.wheels, "labtestslow")  # a wheel comes before the source
    done = slow(script, wanted="labtestone\nlabtestslow")
    assert done.returncode == 0, done.stderr
    assert slow.venvs() == [half]


def test_two_runs_at_once_install_once(requiring: Requiring) -> None:
    lab = requiring.lab
    words = requiring.words(lab.script(IMPORTS.format(module="labtestone")))
    both = [lab.start(*words, env=requiring.env) for _ in range(2)]
    told = [process.communicate(timeout=120) for process in both]
    assert [process.returncode for process in both] == [0, 0], told
    assert sum("installing the packages" in stderr for _, stderr in told) == 1
    assert len(requiring.venvs()) == 1


def test_gc_removes_what_no_run_uses(requiring: Requiring) -> None:
    lab = requiring.lab
    env = {**requiring.env, "DOCKER_HOST": f"unix://{lab.cwd}/none"}  # containers are not the point

    def gc(*options: str) -> str:
        return lab("gc", "--venvs", *options, env=env).stdout

    words = requiring.words(lab.script("import time; print('up', flush=True); time.sleep(600)"))
    process = lab.start(*words, env=env)
    assert process.stdout is not None
    assert process.stdout.readline().endswith("up\n")
    (venv,) = requiring.venvs()
    assert str(venv) not in gc()
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=30)
    assert f"would remove virtual environment {venv}: {lab.cwd}/wanted.txt" in gc("--dry-run")
    assert requiring.venvs() == [venv]
    assert f"removed virtual environment {venv}" in gc()
    assert requiring.venvs() == []


def test_an_index_that_does_not_answer(lab: Lab) -> None:
    (lab.cwd / "wanted.txt").write_text("lab-test-not-there\n")
    env = {
        "XDG_CACHE_HOME": str(lab.cwd / "cache"),
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": "http://127.0.0.1:9/simple",
        "PIP_RETRIES": "1",
        "PIP_FIND_LINKS": "",
    }
    words = ["run", "-t", "solo", "--on", "local", "--requirements", "wanted.txt"]
    done = lab(*words, lab.script(""), env=env)
    assert done.returncode == 1
    assert "the package index does not answer: look at the network" in done.stderr.splitlines()[-1]


def test_from_the_index(lab: Lab) -> None:
    (lab.cwd / "wanted.txt").write_text("toposort==1.10\n")
    words = ["run", "-t", "solo", "--on", "local", "--requirements", "wanted.txt"]
    env = {"XDG_CACHE_HOME": str(lab.cwd / "cache")}
    done = lab(*words, lab.script("import toposort"), env=env)
    assert done.returncode == 0, done.stderr


def images(file: Path) -> list[str]:
    """Tags of the images that were made for a requirements file."""
    label = f"label=multinode-lab.requirements={file}"
    argv = ["docker", "images", "--filter", label, "--format", "{{.Repository}}:{{.Tag}}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return [tag for tag in done.stdout.split() if "<none>" not in tag]


@pytest.fixture
def docker_lab(lab: Lab) -> Iterator[Lab]:
    """`lab` in an empty folder, of whose nodes and images nothing is left afterwards."""
    yield lab
    lab("down", "-t", "solo")
    for tag in images(lab.cwd / "wanted.txt"):
        subprocess.run(["docker", "rmi", tag], capture_output=True, check=True)


@pytest.mark.docker
def test_an_image_for_each_content(docker_lab: Lab) -> None:
    lab = docker_lab
    wanted = lab.cwd / "wanted.txt"
    wanted.write_text("toposort==1.10\n")
    words = ["run", "-t", "solo", "--on", "docker"]
    script = lab.script("import toposort, torch; print('from', toposort.__file__)")
    first = lab(*words, "--requirements", "wanted.txt", script, timeout=240)
    assert first.stdout == "[0 node0] from /opt/venv/lib/python3.11/site-packages/toposort.py\n"
    (tag,) = images(wanted)

    wanted.write_text("# the same\ntoposort==1.10\n")
    again = lab(*words, "--requirements", "wanted.txt", script)
    assert again.returncode == 0
    assert "building" not in again.stderr
    assert "bringing up" not in again.stderr
    assert images(wanted) == [tag]

    without = lab(*words, script, timeout=240)  # a run has what its own command names
    assert without.returncode == 1
    assert "replacing the nodes" in without.stderr
    assert without.stderr.splitlines()[-1].endswith(
        "the package's name into requirements.txt; lab run --requirements requirements.txt ..."
    )
    assert tag in images(wanted)  # for the next time


@pytest.mark.docker
def test_packages_for_all_runs_of_a_folder(docker_lab: Lab) -> None:
    lab = docker_lab
    wanted = lab.cwd / "wanted.txt"
    wanted.write_text("toposort==1.10\n")
    words = ["run", "-t", "solo", "--on", "docker", lab.script("import toposort")]
    assert lab("build", "--requirements", "wanted.txt", timeout=240).returncode == 0
    assert lab(*words, timeout=240).returncode == 0
    (tag,) = images(wanted)
    assert tag not in lab("gc", "--images", "--dry-run").stdout
    assert lab("build", timeout=240).returncode == 0  # though nodes with the image are up
    assert lab(*words, timeout=240).returncode == 1
    assert images(wanted) == []


@pytest.mark.docker
def test_an_image_that_cannot_have_them(docker_lab: Lab) -> None:
    lab = docker_lab
    (lab.cwd / "wanted.txt").write_text("torch==2.1\n")
    options = ["-t", "solo", "--on", "docker", "--requirements", "wanted.txt"]
    done = lab("run", *options, lab.script(""), timeout=240)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("lab: error: wanted.txt asks for another torch than the nodes' 2.")
    assert images(lab.cwd / "wanted.txt") == []
