"""The doctor on containers: nothing against healthy ones, and real faults by node and pair."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.topology import load_topology
from lab.transport.containers import lab_id
from tests.conftest import Lab

pytestmark = [pytest.mark.docker, pytest.mark.timeout(900)]

LISTEN = """
import socket, sys
with socket.create_server(("", 29511)):
    print("listening", flush=True)
    sys.stdin.read()
"""


class Quad:
    """Four containers that are up, whose root may change routes since they have a link."""

    def __init__(self, folder: Path) -> None:
        self.lab = Lab(folder)
        file = folder / "lab.yaml"
        file.write_text(
            "name: four\nnodes: 4\ndocker: {cpus: 1, shm: 256m, link: {rate: 10gbit}}\n"
        )
        self.id = lab_id(load_topology(str(file)), folder)

    def doctor(self) -> tuple[int, list[dict[str, Any]]]:
        """The exit code, and the checks that have not passed."""
        done = self.lab("doctor", "--json", timeout=400)
        report = json.loads(done.stdout)
        return done.returncode, [c for c in report["checks"] if c["status"] != "pass"]

    def docker(self, *argv: str) -> str:
        done = subprocess.run(["docker", *argv], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def as_root(self, node: str, *argv: str) -> str:
        return self.docker("exec", "--user=0", f"{self.id}-{node}", *argv)

    @contextmanager
    def fault(self, node: str, do: str, undo: str) -> Iterator[None]:
        """A command of a shell on a node, and the one that mends what it did."""
        self.as_root(node, "sh", "-c", do)
        try:
            yield
        finally:
            self.as_root(node, "sh", "-c", undo)


@pytest.fixture(scope="module")
def quad(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quad]:
    """One for all tests; each mends what it breaks."""
    made = Quad(tmp_path_factory.mktemp("quad"))
    try:
        done = made.lab("up", timeout=600)
        assert done.returncode == 0, done.stderr
        yield made
    finally:
        made.lab("down")
        made.lab.end()


def test_nothing_is_wrong_with_healthy_containers(quad: Quad) -> None:
    assert quad.doctor() == (0, [])


def test_a_poisoned_name_and_a_firewall_between_two(quad: Quad) -> None:
    hosts = "cp /etc/hosts /tmp/hosts; echo 127.0.1.1 node0 >>/etc/hosts"
    address = quad.as_root("node3", "hostname", "-i")
    route = f"prohibit {address}/32"
    with (
        quad.fault("node1", hosts, "cat /tmp/hosts >/etc/hosts"),
        quad.fault("node2", f"ip route add {route}", f"ip route del {route}"),
    ):
        code, bad = quad.doctor()

    assert code == 1
    found = {(c["name"], *c["nodes"]): c for c in bad if c["name"] != "roll-call"}
    assert list(found) == [
        ("names", "node1", "node0"),
        ("connections", "node1", "node0"),
        ("connections", "node2", "node3"),
    ]
    names = found["names", "node1", "node0"]
    assert "on node1 the name node0, the master, means 127.0.1.1" in names["found"]
    assert "/etc/hosts of node1" in names["cure"]
    wall = found["connections", "node2", "node3"]
    assert wall["found"].startswith("node2 and node3 cannot connect to each other: ")
    calls = [check["found"] for check in bad if check["name"] == "roll-call"]
    assert "node1 did not come; node0, node2 and node3 went on without" in calls


@pytest.mark.parametrize(("end", "mend"), [("pause", "unpause"), ("kill", "start")])
def test_a_container_that_has_ended_or_is_paused_is_absent(quad: Quad, end: str, mend: str) -> None:
    quad.docker(end, f"{quad.id}-node2")
    try:
        code, bad = quad.doctor()
    finally:
        quad.docker(mend, f"{quad.id}-node2")

    assert code == 1
    assert [(check["name"], check["nodes"]) for check in bad] == [
        ("answers", ["node2"]),
        ("roll-call", ["node2"]),
    ]
    assert "docker unpause" in bad[0]["cure"]
    assert bad[1]["found"] == "node2 did not come; node0, node1 and node3 went on without"


def test_little_shared_memory_and_a_port_in_use(lab: Lab) -> None:
    lab.script("name: small\nnodes: 1\ndocker: {shm: 64m}\nmaster: {port: 29511}\n", "lab.yaml")
    try:
        assert lab("up", timeout=600).returncode == 0
        held = lab.start("exec", "node0", "python", "-c", LISTEN, stdin=subprocess.PIPE)
        assert held.stdout is not None
        assert held.stdout.readline() == "listening\n"
        done = lab("doctor", "--json", timeout=400)
    finally:
        lab.end()
        lab("down")

    bad = [check for check in json.loads(done.stdout)["checks"] if check["status"] != "pass"]
    assert done.returncode == 1
    assert [(check["name"], check["status"]) for check in bad] == [
        ("port", "fail"),
        ("shared-memory", "warn"),
    ]
    assert "port 29511 is taken by pid" in bad[0]["found"]
    assert "python -c" in bad[0]["found"]
    assert "67.1 MB" in bad[1]["found"]
    assert "docker.shm" in bad[1]["cure"]
