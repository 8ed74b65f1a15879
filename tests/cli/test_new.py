"""`lab new`: what it writes, and what it refuses."""

import ast
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lab.cli.main import app
from tests.conftest import Lab

ROOT = Path(__file__).parents[2]
OWN = """import torch
from torch import nn


class MyModel(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(16, 4))
"""
DATASET = """

def dataset(*, train: bool) -> torch.utils.data.TensorDataset:
    return torch.utils.data.TensorDataset(torch.zeros(96, 16), torch.zeros(96).long())
"""


def test_every_script_is_clean_and_needs_torch_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mymodule.py").write_text(OWN.replace("import torch\n", ""))
    Path("package").mkdir()
    Path("package/inner.py").write_text(OWN + DATASET)
    models = ["mlp", "cnn", "gpt", "mymodule:MyModel", "package.inner:MyModel"]
    for parallel, (number, model) in itertools.product(("ddp", "fsdp"), enumerate(models)):
        script = Path(f"{parallel}{number}.py")
        argv = ["new", str(script), "--parallel", parallel, "--model", model]
        assert CliRunner().invoke(app, argv).exit_code == 0
        text = script.read_text()
        assert len(text.splitlines()) < 420
        assert imported(text) - {"mymodule", "package"} == {"torch"}
    ruff = [sys.executable, "-m", "ruff"]
    config = ["--config", str(ROOT / "pyproject.toml")]
    for check in (["check", "--ignore=ARG"], ["format", "--check"]):
        done = subprocess.run([*ruff, *check, *config], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout


def imported(text: str) -> set[str]:
    """The packages that a script imports, but for Python's own."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names


def test_a_dataset_of_the_model_s_module_is_taken(lab: Lab) -> None:
    lab.script(OWN + DATASET, "mymodule.py")
    assert lab("new", "train.py", "--model", "mymodule:MyModel").returncode == 0
    text = (lab.cwd / "train.py").read_text()
    assert "from mymodule import MyModel as Model\nfrom mymodule import dataset\n" in text
    assert "def dataset" not in text


def test_names_that_a_shell_or_a_docstring_would_take_amiss(lab: Lab) -> None:
    name = 'a "\\"""$(x) b.py'
    done = lab("new", name)
    assert done.returncode == 0
    assert f"lab run '{name}'" in done.stdout
    ast.parse((lab.cwd / name).read_text())


def test_a_file_that_is_there_stays(lab: Lab) -> None:
    lab.script("mine", "train.py")
    done = lab("new", "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert "train.py exists" in done.stderr
    assert "--force" in done.stderr
    assert (lab.cwd / "train.py").read_text() == "mine"
    assert lab("new", "train.py", "--force").returncode == 0
    assert "def train(" in (lab.cwd / "train.py").read_text()


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["x.py", "--model", "resnet"], "mlp, cnn, gpt"),
        (["x.py", "--model", "absent:M"], "absent.py"),
        (["x.py", "--model", "own:Other"], "MyModel"),
        (["x.py", "--model", "own:"], "MODULE:CLASS"),
        (["x.py", "--model", "broken:M"], "broken.py is no Python"),
        (["own.py", "--force", "--model", "own:MyModel"], "another name"),
        (["torch.py"], "would hide the module torch"),
        (["random.py"], "would hide the module random"),  # which torch imports
        (["sub/numpy.py"], "another name"),
        (["pydantic.py"], "would hide the module pydantic"),  # whatever is installed
        (["package.py", "--model", "package.inner:MyModel"], "would hide the module package"),
        (["x.py", "--parallel", "zero"], "'ddp', 'fsdp'"),
        (["x.txt"], ".py"),
        (["--", "-x.py"], "would be taken for options"),
        (["folder.py"], "folder.py exists"),
        (["no/such/x.py"], "there is no folder no/such; make it first: mkdir -p no/such"),
        ([], "FILE"),
    ],
)
def test_what_is_refused_in_one_line(lab: Lab, argv: list[str], words: str) -> None:
    lab.script(OWN, "own.py")
    lab.script("class M(", "broken.py")
    lab.script(OWN, "package/inner.py")
    (lab.cwd / "folder.py").mkdir()
    done = lab("new", *argv)
    assert done.returncode == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (lab.cwd / "x.py").exists()
    assert not (lab.cwd / "no").exists()


def test_a_folder_that_cannot_be_written(lab: Lab) -> None:
    lab.script("", "file")
    done = lab("new", "file/x.py")
    assert done.returncode == 1
    assert done.stderr.startswith("lab: error: file/x.py cannot be written")
    assert done.stderr.count("\n") == 1
