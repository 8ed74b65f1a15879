"""Runs at the same time on the same nodes do not disturb each other."""

import json
import signal
from collections.abc import Iterator

import pytest

from tests.conftest import Lab
from tests.runs.test_docker_runs import things

MEET = """
import os, socket, sys, time
from pathlib import Path
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
name, end = sys.argv[1:]
def meet():
    if rank == 0:
        with socket.create_server(("", master[1])) as server:
            for _ in range(size - 1):
                with server.accept()[0] as peer:
                    assert peer.recv(99) == name.encode(), "somebody else's rank"
        return
    while True:
        try:
            with socket.create_connection(master) as peer:
                peer.send(name.encode())
                return
        except ConnectionRefusedError:
            time.sleep(0.05)
meet()
Path(f"{name}-{rank}-met").touch()
while not all(Path(f"{other}-{r}-met").exists() for other in "abc" for r in range(size)):
    time.sleep(0.05)
if end == "fails" and rank == 1:
    sys.exit(7)
if end == "stays":
    time.sleep(1000)
while not Path("go").exists():
    time.sleep(0.05)
print(name, "ended well")
"""


def three_runs(lab: Lab, where: str) -> None:
    """One fails, one is interrupted, and the third one does not notice."""
    script = lab.script(MEET)
    runs = {
        name: lab.start("run", "-t", "pair", "--on", where, script, name, end)
        for name, end in (("a", "fails"), ("b", "stays"), ("c", "goes on"))
    }
    _, err = runs["a"].communicate(timeout=120)
    assert runs["a"].returncode == 7, err
    runs["b"].send_signal(signal.SIGINT)
    _, err = runs["b"].communicate(timeout=60)
    assert runs["b"].returncode == 130, err
    assert runs["c"].poll() is None
    (lab.cwd / "go").touch()
    out, err = runs["c"].communicate(timeout=60)
    assert runs["c"].returncode == 0, err
    assert sorted(out.splitlines()) == ["[0 node0] c ended well", "[1 node1] c ended well"]
    told = json.loads(lab("ps", "--json").stdout)["runs"]
    assert sorted(run["exit_code"] for run in told) == [0, 7, 130]


def test_on_local_nodes(lab: Lab) -> None:
    three_runs(lab, "local")


@pytest.fixture
def pair(lab: Lab) -> Iterator[Lab]:
    assert lab("up", "-t", "pair", timeout=300).returncode == 0
    yield lab
    lab("down", "-t", "pair")
    assert things(lab) == []


@pytest.mark.docker
def test_on_containers(pair: Lab) -> None:
    three_runs(pair, "docker")
