"""`lab lesson`: what it lists, explains, runs, and how it ends."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lab.cli.main import app
from lab.lessons import LESSONS, Lesson, registry
from tests.conftest import Lab

HEAD = '"""A lesson of a test."""\nimport os\nfrom lab.lessons.notebook import Notebook\n\n'
GOOD = "def exercise(notebook):\n    notebook.expect('one', 1, 1)\n"
WRONG = "def exercise(notebook):\n    notebook.expect('the answer', 6 * 9, 42)\n"
BROKEN = (
    "def exercise(notebook):\n"
    "    if notebook.world.rank == 1:\n"
    "        raise ValueError('out of ink')\n"
    "    notebook.expect('never reached', 1, 1)\n"
)


class OfTest(Lesson):
    """A lesson whose module is in the current folder."""

    @property
    def module(self) -> str:
        return self.name


@pytest.fixture
def lessons(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """`lessons(good=..., bad=...)`: only these are there, with these texts."""
    monkeypatch.chdir(tmp_path)

    def make(**texts: str) -> None:
        for name, text in texts.items():
            (tmp_path / f"{name}.py").write_text(HEAD + text)
        monkeypatch.setattr(registry, "LESSONS", tuple(OfTest(name) for name in texts))

    return make


def run(*argv: str) -> Any:
    return CliRunner().invoke(
        app, ["lesson", "run", *argv, "--on", "local", "--nodes", "1", "--slots", "2"]
    )


def test_list_has_every_name_and_title(lab: Lab) -> None:
    done = lab("lesson", "list")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == [lesson.name for lesson in LESSONS]
    assert lines[0].endswith(LESSONS[0].title)
    rows = json.loads(lab("lesson", "list", "--json").stdout)
    assert rows == [{"name": lesson.name, "title": lesson.title} for lesson in LESSONS]


def test_explain_prints_the_text_and_where_the_code_is(lab: Lab) -> None:
    done = lab("lesson", "explain", "no-sync")
    assert done.returncode == 0
    assert "Exercise" in done.stdout
    assert "The mean is linear" in done.stdout
    assert f"{Path('lab/lessons/exercises/no_sync.py')}\n" in done.stdout
    assert "lab lesson run no-sync" in done.stdout


def test_neither_needs_torch() -> None:
    text = (
        "import sys\nfrom lab.cli.main import app\n"
        "for argv in (['lesson', 'list'], ['lesson', 'explain', 'all']):\n"
        "    app(argv, standalone_mode=False)\n"
        "print('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize("verb", ["run", "explain"])
def test_an_unknown_lesson_is_one_line_and_exit_code_2(lab: Lab, verb: str) -> None:
    done = lab("lesson", verb, "overlp")
    assert done.returncode == 2
    expected = "there is no lesson overlp; did you mean overlap? lab lesson list shows them all"
    assert done.stderr == f"lab: error: {expected}\n"
    assert lab.runs() == []


def test_too_few_ranks_start_nothing(lab: Lab) -> None:
    done = lab("lesson", "run", "all", "--on", "local", "--nodes", "1")
    assert done.returncode == 2
    assert "world-size-4 needs at least 2 ranks, and quad has 1: add --nodes 2" in done.stderr
    assert lab.runs() == []


@pytest.mark.timeout(600)
def test_every_lesson_on_local_ranks(lab: Lab) -> None:
    done = lab("lesson", "run", "all", "--on", "local", "--nodes", "2", "--slots", "2", timeout=560)
    assert done.returncode == 0, done.stdout + done.stderr
    for lesson in LESSONS:
        assert f"{lesson.title}" in done.stdout
    assert "FAILS" not in done.stdout
    rows = {line.split()[0]: line.split() for line in done.stdout.splitlines() if line}
    for lesson in LESSONS:
        _, _, expected, held, ok = rows[lesson.name]
        assert int(expected) == int(held) > 0
        assert ok == "yes"
    assert len(lab.runs()) == 1


@pytest.mark.docker
@pytest.mark.timeout(600)
def test_lessons_on_containers_as_json(lab: Lab) -> None:
    names = ["nccl-environment", "no-sync", "fsdp-reshard"]
    try:
        where = ("-t", "pair", "--on", "docker")
        done = lab("lesson", "run", *names, *where, "--json", timeout=560)
    finally:
        lab("down", "-t", "pair")
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    assert document["ok"] is True
    assert [lesson["lesson"] for lesson in document["lessons"]] == names
    for lesson in document["lessons"]:
        assert lesson["world_size"] == 2
        assert lesson["fault"] == ""
        assert not [f for f in lesson["findings"] if f["holds"] is False]
    hosts = document["lessons"][0]["findings"]
    assert any("hosts: 2" in finding["measured"] for finding in hosts)


def test_what_goes_wrong_is_named_and_the_others_are_done(lessons: Any, tmp_path: Path) -> None:
    lessons(wrong=WRONG, broken=BROKEN, good=GOOD)
    result = run("all")
    assert result.exit_code == 1
    assert "FAILS  the answer: 54 (theory: 42)" in result.stdout
    rows = [line.split() for line in result.stdout.splitlines()[-3:]]
    assert [(name, *rest) for name, _, *rest in rows] == [
        ("wrong", "1", "0", "NO"),
        ("broken", "-", "-", "NO"),
        ("good", "1", "1", "yes"),
    ]
    *_, wrong, broken = result.stderr.splitlines()
    assert wrong.startswith("lab: wrong: the answer: 54, theory: 42 (run ")
    assert broken.startswith("lab: broken: rank 1 on node0: ValueError: out of ink (")
    assert len(list((tmp_path / "runs").iterdir())) == 2  # a lesson that fails ends its run
