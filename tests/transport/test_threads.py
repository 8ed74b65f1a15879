"""Ranks have no more threads than there are cores for them, where nodes share or limit cores."""

from pathlib import Path

import pytest

from lab.topology import parse_topology
from lab.transport.docker import DockerTransport
from lab.transport.local import LocalTransport


def local(nodes: int, folder: Path) -> str | None:
    transport = LocalTransport(parse_topology(f"on: local\nnodes: {nodes}"), folder)
    return transport.default_env(transport.topology.nodes[0]).get("OMP_NUM_THREADS")


def test_local_nodes_share_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert local(2, tmp_path) == "1"
    assert local(1, tmp_path) is None  # it has all cores
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert local(2, tmp_path) == "3"


@pytest.mark.docker
def test_a_container_has_the_cores_of_its_limit(tmp_path: Path) -> None:
    text = "nodes: [{name: a, cpus: 5, slots: 2}, {name: b}, {name: c, cpus: 3}]\ndocker: {cpus: "
    threads = {}
    for cpus in ("0.5", "null"):
        transport = DockerTransport(parse_topology(f"{text}{cpus}}}"), tmp_path)
        found = [transport.default_env(node) for node in transport.topology.nodes]
        threads[cpus] = [env.get("OMP_NUM_THREADS") for env in found]
    assert threads == {"0.5": ["2", "1", "3"], "null": ["2", None, "3"]}
