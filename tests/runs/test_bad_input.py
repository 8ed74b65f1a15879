"""What goes wrong for reasons outside lab: each says what to do, in a line of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.runs.hints import hint_for, package_of
from lab.runs.job import Job
from lab.runs.verdict import Failure
from tests.conftest import Lab


def last_line(lab: Lab, text: str, *options: str) -> str:
    done = lab("run", "-t", "solo", "--on", "local", *options, lab.script(text))
    assert done.returncode == 1
    told = json.loads((lab.runs()[-1] / "verdict.json").read_text())
    last = done.stderr.splitlines()[-1]
    assert last == f"lab: {told['hint']}"
    return last


def test_a_missing_module_is_named_with_its_package(lab: Lab) -> None:
    last = last_line(lab, "raise ModuleNotFoundError(\"No module named 'cv2.sub'\")")
    assert last.endswith(
        "the module cv2.sub is in the package opencv-python-headless: "
        "echo opencv-python-headless >> requirements.txt; "
        "lab run --requirements requirements.txt ..."
    )


def test_no_package_is_made_up_for_a_module_that_nobody_knows(lab: Lab) -> None:
    last = last_line(lab, "import definitely_not_there.sub")
    assert last.endswith(
        f"there is no definitely_not_there in {lab.cwd}, and no package that is known to have it: "
        "put the file beside the script, or the package's name into requirements.txt; "
        "lab run --requirements requirements.txt ..."
    )


def test_a_module_of_ones_own_that_is_elsewhere(lab: Lab) -> None:
    lab.script("", "helpers.py")
    script = lab.script("import helpers", "sub/train.py")
    done = lab("run", "-t", "solo", "--on", "local", script)
    assert f"PYTHONPATH={lab.cwd}" in done.stderr.splitlines()[-1]
    cured = lab("run", "-t", "solo", "--on", "local", "--env", f"PYTHONPATH={lab.cwd}", script)
    assert cured.returncode == 0


def test_cuda_where_there_is_none(lab: Lab) -> None:
    text = "x = 1\nraise RuntimeError('Found no NVIDIA driver on your system. Please check')"
    last = last_line(lab, text)
    assert "script.py:2 asks for CUDA or nccl" in last
    assert "gloo" in last


def test_cuda_in_a_real_torch(lab: Lab) -> None:
    last = last_line(lab, "import torch\n\ntorch.ones(1, device='cuda')\n")
    assert "script.py:3 asks for CUDA or nccl" in last


def test_nccl_in_a_real_torch(lab: Lab) -> None:
    last = last_line(lab, "import torch.distributed as dist\n\ndist.init_process_group('nccl')\n")
    assert "script.py:3 asks for CUDA or nccl" in last


def raised(exception: str, message: str) -> Failure:
    return Failure(0, "node0", "exception", 1, exception=exception, message=message)


@pytest.mark.parametrize(
    ("module", "requirements", "words"),
    [
        ("cv2", None, "echo opencv-python-headless >> requirements.txt;"),
        ("google.protobuf", "my.txt", "echo protobuf >> my.txt; lab run --requirements my.txt"),
        ("sklearn.tree", "a b.txt", "echo scikit-learn >> 'a b.txt';"),
        ("PIL", None, "the package pillow:"),
        ("_pytest", None, "the package pytest:"),  # it is installed here under that name
        ("no_such_thing.at_all", None, "there is no no_such_thing in "),
        ("_lzma", None, "part of Python"),
    ],
)
def test_packages(module: str, requirements: str | None, words: str, tmp_path: Path) -> None:
    file = None if requirements is None else Path(requirements)
    job = Job(command=("a.py",), cwd=tmp_path, requirements=file)
    failure = raised("ModuleNotFoundError", f"No module named '{module}'")
    assert words in (hint_for(failure, job) or "")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "trian",
            "there is no module trian in {folder}, and none among the installed ones; "
            "there is train",
        ),
        ("modles.net", "; there is models"),
        ("models.nte", "; there is models.net"),
        ("nothing.like_it", "none among the installed ones"),
    ],
)
def test_a_module_to_run_that_is_not_there(lab: Lab, name: str, words: str) -> None:
    lab.script("", "train.py")
    lab.script("", "models/net.py")
    done = lab("run", "-t", "solo", "--on", "local", "-m", name)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(words.format(folder=lab.cwd))
    assert "Traceback" not in done.stderr


SPAWNED = """

-- Process 0 terminated with the following error:
Traceback (most recent call last):
  File "a.py", line 1, in work
    import PIL
ModuleNotFoundError: No module named 'PIL'
"""


def test_what_a_spawned_process_raised(tmp_path: Path) -> None:
    failure = raised("ProcessRaisedException", SPAWNED)
    assert str(failure) == (
        "rank 0 on node0: ProcessRaisedException: ModuleNotFoundError: No module named 'PIL'"
    )
    assert "package pillow:" in (hint_for(failure, Job(command=("a.py",), cwd=tmp_path)) or "")


def test_a_package_built_for_cuda(tmp_path: Path) -> None:
    job = Job(command=("a.py",), cwd=tmp_path, requirements=Path("mine.txt"))
    failure = raised("RuntimeError", "operator torchvision::nms does not exist")
    assert "--extra-index-url" in (hint_for(failure, job) or "")
    assert "into mine.txt" in (hint_for(failure, job) or "")


def test_no_hint_where_nobody_can_know(tmp_path: Path) -> None:
    job = Job(command=("a.py",), cwd=tmp_path)
    assert hint_for(raised("ValueError", "No module named 'x'"), job) is None
    assert hint_for(Failure(0, "n", "exit", 3), job) is None


def test_more_ranks_than_cores_are_warned_of(lab: Lab) -> None:
    script = lab.script("")
    cores = len(os.sched_getaffinity(0))
    many = lab("run", "-t", "solo", "--slots", str(cores + 1), "--on", "local", script)
    assert many.returncode == 0
    assert f"warning: {cores + 1} ranks share the {cores} core" in many.stderr
    assert "warning" not in lab("run", "-t", "solo", "--on", "local", script).stderr


def test_a_pattern_that_no_variable_has(lab: Lab) -> None:
    words = ["run", "-t", "solo", "--on", "local", "--pass-env", "LAB_TEST_*", lab.script("")]
    done = lab(*words)
    assert done.returncode == 0
    assert "lab: warning: --pass-env LAB_TEST_*: you have no such variable" in done.stderr
    assert "warning: --pass-env" not in lab(*words, env={"LAB_TEST_X": "1"}).stderr


@pytest.mark.docker
def test_an_executable_that_nodes_do_not_have(lab: Lab) -> None:
    try:
        done = lab("run", "-t", "solo", "--on", "docker", "--no-python", "nosuch")
        assert done.returncode == 1
        assert "nosuch cannot be run on this node: No such file" in done.stderr.splitlines()[-1]
        called = lab("exec", "-t", "solo", "--on", "docker", "node0", "nosuch")
        assert called.returncode == 127
        words = "lab: error: nosuch cannot be run on node0: No such file or directory\n"
        assert called.stderr == words
    finally:
        lab("down", "-t", "solo")


FLOOD = """
import os, time
if os.environ["RANK"] == "0":
    for _ in range(4000):
        print("x" * 1000)
time.sleep(1000)
"""


def test_logs_that_cannot_be_written_end_the_run(lab: Lab) -> None:
    """A limit on the size of files says no as a full disk does."""
    words = f"ulimit -f 1000; exec {sys.executable} -P -m lab run -t pair --on local -q"
    done = subprocess.run(
        ["sh", "-c", f"{words} {lab.script(FLOOD)}"],
        cwd=lab.cwd,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("lab: error: the run directory")
    assert line.endswith("cannot be written: File too large")
    told = json.loads((lab.runs()[0] / "verdict.json").read_text())
    assert told["kind"] == "lab-error"


@pytest.fixture
def small_disk(lab: Lab) -> Iterator[Lab]:
    """`runs/` on a disk of 1 MiB."""
    runs = lab.cwd / "runs"
    runs.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(runs)]
    subprocess.run(mount, check=True, capture_output=True)
    try:
        yield lab
    finally:
        subprocess.run(["umount", "-l", str(runs)], check=True)


if sys.platform == "linux" and os.geteuid() == 0:  # only root may mount

    def test_a_full_disk_ends_the_run(small_disk: Lab) -> None:
        lab = small_disk
        script = lab.script(FLOOD)
        done = lab("run", "-t", "pair", "--on", "local", "--quiet", script, timeout=60)
        assert done.returncode == 1
        (line,) = done.stderr.splitlines()
        assert line.startswith("lab: error: the run directory")
        assert "cannot be written: No space left on device; free some space" in line
        (run,) = lab.runs()
        written = (run / "node0/rank0.out").read_bytes()
        assert len(written) > 500_000  # what there was room for is there, in order
        assert {len(text) for text in written.split(b"\n")[:-1]} == {1000}
        told = json.loads((run / "verdict.json").read_text())
        assert told["kind"] == "lab-error"
        assert "free some space" in told["summary"]
        (listed,) = json.loads(lab("ps", "--json").stdout)["runs"]
        assert (listed["state"], listed["exit_code"]) == ("finished", 1)
        assert [path.name for path in run.iterdir() if path.name.startswith(".")] == []

    def test_a_disk_without_room_for_a_run_has_no_half_of_one(small_disk: Lab) -> None:
        lab = small_disk
        (lab.cwd / "runs" / "full").write_bytes(bytes((1 << 20) - 20_000))
        done = lab("run", "-t", "solo", "--on", "local", lab.script(""))
        assert done.returncode == 1
        assert "No space left on device; free some space" in done.stderr
        assert [path.name for path in (lab.cwd / "runs").iterdir()] == ["full"]


@pytest.mark.parametrize(
    ("module", "package"),
    [("yaml", "PyYAML"), ("PIL.Image", "pillow"), ("rich", "rich"), ("not_there_at_all", None)],
)
def test_a_package_is_known_by_our_table_or_since_it_is_installed_here(
    module: str, package: str | None
) -> None:
    assert package_of(module) == package
