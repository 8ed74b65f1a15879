"""The doctor on processes of this machine: healthy ones, and one that is not like the other."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import pytest

from lab.doctor.check import Check
from lab.doctor.checks import judge
from lab.doctor.examine import Examination
from lab.doctor.places import over
from lab.topology import Node, Topology
from lab.transport.local import LocalChannel, LocalTransport
from tests.conftest import Lab

DEADLINE = 120.0
HOLDER = """
import socket, sys
with socket.create_server(("", 0)) as server:
    print(server.getsockname()[1], flush=True)
    sys.stdin.read()
"""


def test_nothing_is_wrong_with_healthy_nodes(lab: Lab) -> None:
    done = lab("doctor", "-t", "pair", "--on", "local", "--json", timeout=240)

    report = json.loads(done.stdout)
    checks = {check["name"]: check for check in report["checks"]}
    assert [check for check in report["checks"] if check["status"] != "pass"] == []
    assert (done.returncode, report["status"], report["schema"]) == (0, "pass", 1)
    assert report["nodes"] == ["node0", "node1"]
    assert checks["connections"]["found"] == "2 of 2: every node to every other"
    assert checks["roll-call"]["found"].startswith("an all-reduce over 2 nodes (gloo)")
    assert {(link["from"], link["to"]) for link in report["links"]} == {
        ("node0", "node1"),
        ("node1", "node0"),
    }
    assert all(link["latency"] > 0 and link["bandwidth"] > 0 for link in report["links"])


@pytest.fixture
def held() -> Iterator[tuple[int, int]]:
    """A port that somebody holds, and his pid."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
    finally:
        process.communicate()


class Unlike(LocalTransport):
    """Two nodes, of which node1 has its own variables and its own copy of the project."""

    def __init__(self, topology: Topology, folder: Path, odd: Mapping[str, str]) -> None:
        super().__init__(topology, folder)
        self._odd = odd

    def start(
        self,
        node: Node,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        tty: bool = False,
    ) -> LocalChannel:
        own = self._odd if node.name == "node1" else {}
        return super().start(node, argv, cwd=cwd, env={**(env or {}), **own}, tty=tty)

    def place(self, node: Node, path: Path) -> str:
        return str(path / node.name)


def test_what_differs_on_one_node_is_named(tmp_path: Path, held: tuple[int, int]) -> None:
    port, pid = held
    for node, text in (("node0", "new"), ("node1", "old")):
        (tmp_path / node).mkdir()
        (tmp_path / node / "train.py").write_text(text)
        (tmp_path / node / "same.py").write_text("same")
    broken = tmp_path / "broken/torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libtorch.so: no such file')")
    topology = Topology.model_validate(
        {"name": "x", "on": "local", "nodes": 2, "master": {"port": port}}
    )
    odd = {"PYTHONPATH": str(broken.parent), "NCCL_ALGO": "Tree"}
    exam, conversation = over(Unlike(topology, tmp_path, odd), tmp_path)
    try:
        Examination(exam, conversation, lambda _: None).run()
    finally:
        conversation.close()

    bad: dict[str, Check] = {check.name: check for check in judge(exam) if check.status != "pass"}
    assert set(bad) == {"port", "torch", "code", "environment", "roll-call"}
    assert f"port {port} is taken by pid {pid} (" in bad["port"].found
    assert bad["torch"].found == "node1: import torch: libtorch.so: no such file"
    assert bad["code"].found == "train.py on node1 are not those of node0"
    assert bad["environment"].found == "NCCL_ALGO is not set on node0; Tree on node1"
    assert bad["roll-call"].found == "node1 did not come; node0 went on without"


def test_wrong_usage(lab: Lab) -> None:
    assert lab("doctor", "-t", "nowhere").returncode == 2


def test_the_table_has_the_cure_beside_what_is_wrong(lab: Lab) -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        lab.script(f"name: x\non: local\nnodes: 1\nmaster: {{port: {port}}}\n", "lab.yaml")
        done = lab("doctor", timeout=240)

    assert done.returncode == 1
    lines = [line.split(maxsplit=2) for line in done.stdout.splitlines() if line.strip()]
    (at,) = (number for number, line in enumerate(lines) if line[:2] == ["fail", "port"])
    assert f"port {port} is taken by pid" in lines[at][2]
    assert lines[at + 1][0] == "cure:"
    assert lines[-1][0] == "lab:"
    assert "1 failed" in done.stdout.splitlines()[-1]


def test_nothing_is_left_of_it_when_it_is_killed(lab: Lab) -> None:
    process = lab.start("doctor", "-t", "pair", "--on", "local")
    parent = psutil.Process(process.pid)
    give_up = time.monotonic() + DEADLINE
    programs: list[psutil.Process] = []
    while len(programs) < 4:  # on each node the program, and its fork for the roll-call
        assert time.monotonic() < give_up
        assert process.poll() is None
        programs = parent.children(recursive=True)
        time.sleep(0.01)
    process.kill()

    _, alive = psutil.wait_procs(programs, timeout=DEADLINE)
    assert alive == []
