"""Mistakes on the command line: one line with the cure, and exit code 2."""

import inspect
import subprocess
import sys

import pytest

from lab.api import run
from lab.cli.options import ON_STALL, STALL, stall_of
from lab.runs.stall import Stall
from tests.conftest import COMMAND, Lab


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("run --frobnicate", "no such option: --frobnicate; lab run --help has the options"),
        ("run --max-restart 1 a.py", "(did you mean --max-restarts?); lab run --help"),
        ("run --max-restarts -1 a.py", "--max-restarts: must be greater than or equal"),
        ("run --max-restarts x a.py", "--max-restarts: must be a valid integer;"),
        ("run --grace nan a.py", "--grace: must be"),
        ("run --nodes", "requires an argument; lab run --help has the options"),
        ("run --quiet=3 a.py", "does not take a value; lab run --help has the options"),
        ("run -dash.py", "-dash.py is taken for options; a script of that name is ./-dash.py"),
        ("run --dash.py", "a script of that name is ./--dash.py"),
        ("run --on local --collect x a.py", "--collect is for hosts over SSH; here all nodes"),
        ("run --on docker --no-deploy a.py", "--no-deploy is for hosts over SSH; here all nodes"),
        ("run -t quad --on local --rank 9 -m this", "there is no rank 9; the ranks are 0-3"),
        ("logs --tail -1", "--tail: must be greater than or equal to 0; lab logs --help"),
        ("exec", "lab exec needs the name of a node, or --all and a command"),
        ("render", "missing option '--as'. Choose from: compose, env, hostfile, sbatch, ssh; lab"),
        ("render --as x", "not one of 'compose', 'env', 'hostfile', 'sbatch', 'ssh'; lab render"),
        ("ps x", "(x); lab ps --help has the options"),
        ("frobnicate", "no such command 'frobnicate'; lab --help has the commands"),
        ("rnu", "no such command 'rnu'. Did you mean 'run'?; lab --help has the commands"),
        ("bench lnk", "no such command 'lnk'. Did you mean 'link'?; lab bench --help"),
        (
            "lesson buckets",
            "no such command 'buckets'; did you mean lab lesson run buckets, or lab lesson explain "
            "buckets?",
        ),
        ("zoo bad-sample", "did you mean lab zoo run bad-sample, or lab zoo explain bad-sample?"),
        ("zoo nosuch", "no such command 'nosuch'; lab zoo --help has the commands"),
        ("ckpt .", "no such command '.'; did you mean lab ckpt ls ., or lab ckpt show .?"),
        ("prove fsdp", "(fsdp); did you mean --parallel fsdp?; lab prove --help has the options"),
        ("prove nosuch", "got unexpected extra argument(s) (nosuch); lab prove --help"),
        ("up quad", "(quad); did you mean -t quad?; lab up --help has the options"),
        ("doctor mine.yaml", "(mine.yaml); did you mean -t mine.yaml?; lab doctor --help"),
        ("ps quad", "got unexpected extra argument(s) (quad); lab ps --help has the options"),
        ("--frobnicate", "no such option: --frobnicate; lab --help"),
        ("--version=1", "does not take a value; lab --help has the options"),
    ],
)
def test_one_line(lab: Lab, line: str, words: str) -> None:
    done = lab(*line.split())
    assert done.returncode == 2
    (told,) = done.stderr.splitlines()
    assert told.startswith("lab: error: ")
    assert words in told
    assert done.stdout == ""


def test_a_script_whose_name_begins_with_a_dash_has_its_cure(lab: Lab) -> None:
    script = lab.script("print('ran')", "-dash.py")
    for words in ([f"./{script}"], ["--", script]):
        done = lab("run", "-t", "solo", "--on", "local", *words)
        assert done.stdout == "[0 node0] ran\n", done.stderr


@pytest.mark.parametrize("words", [(), ("bench",)])
def test_without_a_command_there_is_help(lab: Lab, words: tuple[str, ...]) -> None:
    done = lab(*words)
    assert "Usage: lab" in done.stdout
    assert done.stderr == ""
    assert done.returncode == 2


@pytest.mark.parametrize("line", ["up", "down", "hosts", "exec --all -- true", "exec node0 true"])
def test_hosts_of_slurm_are_reached_by_jobs_alone(lab: Lab, line: str) -> None:
    lab.script("on: slurm\nname: x\nnodes: 2\n", "lab.yaml")
    done = lab(*line.split())
    assert done.returncode == 2
    (told,) = done.stderr.splitlines()
    assert told.startswith("lab: error: on: slurm: only jobs reach its hosts")
    assert "lab down -t slurm-lab" in told


def test_stalls_are_looked_for_alike_wherever_a_run_is_started() -> None:
    said = inspect.signature(run).parameters
    assert stall_of(STALL, ON_STALL) == Stall()
    assert Stall.of(said["stall"].default, said["on_stall"].default) == Stall()


COMMAND_THAT = """
import typer, lab.cli.runs
def ps():
    {0}
lab.cli.runs.ps = ps
from lab.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("does", "told"),
    [
        (
            "raise EOFError('half of it')",
            "lab: error: what lab was reading ended too early: EOFError: half of it (<string>:4)\n",
        ),
        ("typer.confirm('yes?')", ""),  # who ends a prompt knows it
    ],
    ids=["file", "prompt"],
)
def test_an_end_that_comes_too_early_is_told_unless_it_is_that_of_a_prompt(
    does: str, told: str
) -> None:
    command = [sys.executable, "-P", "-c", COMMAND_THAT.format(does), "ps"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, told)


def test_a_folder_that_has_gone(lab: Lab) -> None:
    gone = lab.cwd / "gone"
    gone.mkdir()
    command = 'cd "$1" && rmdir "$1" && shift && exec "$@"'
    words = ["sh", "-c", command, "sh", str(gone), sys.executable, *COMMAND, "ps"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == "lab: error: the current folder has gone: go to another one\n"
