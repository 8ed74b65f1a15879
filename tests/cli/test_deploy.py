"""How `lab deploy` is shown, and what it refuses; what it does: tests/deploy."""

import io

import pytest
from rich.console import Console

from lab.cli.deploy import Lines, Table
from lab.topology import Topology
from tests.conftest import Lab


def test_each_step_of_a_host_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines()
    for done in (0, 50, 100):
        lines.step("node0", "sending 2 files", done, 100)
    lines.step("node1", "sending 2 files", 0, 100)
    lines.step("node0", "switched", 0, 0)
    lines.warn("big.bin has 2.1 GB")

    assert capsys.readouterr().err.splitlines() == [
        "lab: node0: sending 2 files",
        "lab: node1: sending 2 files",
        "lab: node0: switched",
        "lab: warning: big.bin has 2.1 GB",
    ]


def test_on_a_terminal_a_row_follows_each_host() -> None:
    shown: list[object] = []
    table = Table(Topology.model_validate({"on": "ssh", "nodes": 2}), shown.append)
    table.step("node1", "sending [2] files\n", 50, 200)
    table.step("node0", "up to date", 0, 0)

    out = io.StringIO()
    console = Console(file=out, width=100)
    for one in shown:
        console.print(one)
    *_, header, first, second = out.getvalue().splitlines()
    assert header.split() == ["HOST", "STEP", "PROGRESS", "SECONDS"]
    assert first.split()[:-1] == ["node0", "up", "to", "date"]
    assert second.split()[:-1] == ["node1", "sending", "[2]", r"files\n", "25", "%"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["-t", "quad"], "quad is on docker, where nodes see this folder as it is"),
        (["--rollback", "--requirements", "x"], "leave --requirements out"),
        (["--requirements", "x"], "--requirements x: No such file or directory"),
    ],
)
def test_what_cannot_be_deployed(lab: Lab, arguments: list[str], words: str) -> None:
    if "-t" not in arguments:
        lab.script("on: ssh\nnodes: a\n", "lab.yaml")
    done = lab("deploy", *arguments)
    assert done.returncode == 2
    assert words in done.stderr
