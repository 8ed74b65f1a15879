"""compose.yaml: what it says, and that it works by itself."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lab.topology import Topology, load_topology
from lab.transport.compose import render_compose
from lab.transport.image_context import fill_local

ROOT = Path(__file__).parents[2]


def test_the_committed_file_is_what_lab_renders() -> None:
    committed = (ROOT / "compose.yaml").read_text()
    again = ".venv/bin/lab render quad --as compose > compose.yaml"
    assert committed == render_compose(load_topology("quad")), again


def test_it_has_no_path_and_no_user_of_this_machine() -> None:
    text = render_compose(load_topology("quad"))
    assert str(Path.cwd()) not in text
    assert re.findall(r"(?m)^\s*(?:user|ports):", text) == []
    assert re.findall(r"volumes: (.*)", text) == ['[".:/workspace"]']


def test_all_that_a_topology_can_say_is_in_it() -> None:
    topology = Topology.model_validate(
        {
            "name": "mixed",
            "nodes": [
                {"name": "big", "slots": 2, "cpus": 2, "memory": "4g", "address": "10.5.0.10"},
                {"name": "small", "address": "10.5.0.11"},
            ],
            "env": {"GREETING": 'a $HOME for\t"you"'},
            "master": {"port": 12345},
            "docker": {
                "cpus": 0.5,
                "memory": "1g",
                "shm": "64m",
                "internet": False,
                "link": {"rate": "100mbit"},
                "gpus": "all",
            },
        }
    )
    loaded = yaml.safe_load(render_compose(topology))
    big, small = loaded["services"]["big"], loaded["services"]["small"]
    assert (big["cpus"], big["mem_limit"], small["cpus"], small["mem_limit"]) == (
        2,
        "4g",
        0.5,
        "1g",
    )
    assert big["environment"]["LAB_NODES"] == "big=2 small=1"
    assert big["environment"]["MASTER_PORT"] == "12345"
    assert big["environment"]["GREETING"] == 'a $$HOME for\t"you"'
    assert small["networks"]["lab"]["ipv4_address"] == "10.5.0.11"
    assert "NET_ADMIN" in small["cap_add"]
    assert loaded["networks"]["lab"]["internal"] is True
    assert "gpu" in str(small["deploy"])


class Compose:
    """`docker compose` in a copy of the repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("lab", "docker"):
            shutil.copytree(ROOT / name, folder / name)
        shutil.copy(ROOT / "compose.yaml", folder)
        fill_local(folder / "docker/local")

    def __call__(self, *argv: str, job: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["docker", "compose", *argv],
            cwd=self.folder,
            env={**os.environ, "LAB_JOB": job},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # Compose hands on what the ranks wrote to either
            text=True,
            check=False,
        )

    def up(self, job: str = "") -> subprocess.CompletedProcess[str]:
        return self("up", "--exit-code-from", "node0", job=job)


@pytest.fixture
def compose(tmp_path: Path) -> Iterator[Compose]:
    folder = tmp_path / f"compose{os.getpid()}"  # the project's name
    folder.mkdir()
    found = Compose(folder)
    try:
        yield found
    finally:
        found("down")


FAILING = """\
import os, sys, time, traceback
import torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if os.environ["RANK"] == "2":
    try:
        raise ValueError("bad batch 7")
    except ValueError:
        traceback.print_exc()
        sys.exit(37)
while True:
    dist.all_reduce(torch.ones(1))
    time.sleep(0.01)
"""


@pytest.mark.docker
@pytest.mark.timeout(900)
def test_compose_alone_trains_fails_and_leaves_nothing(compose: Compose) -> None:
    # Files of an earlier run must not confuse this one.
    meeting = compose.folder / "runs/.meeting"
    meeting.mkdir(parents=True)
    (meeting / "node1.ready").write_text('"stale"')
    (meeting / "start.json").write_text('{"run": "stale", "nonces": {"node1": "stale"}}')

    good = compose.up()
    assert good.returncode == 0, good.stdout
    assert "[0 node0] epoch" in good.stdout
    runs = list(compose.folder.glob("runs/2*"))
    assert len(runs) == 1
    owners = {path.lstat().st_uid for path in [runs[0], *runs[0].rglob("*")]}
    assert owners == {compose.folder.stat().st_uid}

    (compose.folder / "fail.py").write_text(FAILING)
    bad = compose.up("fail.py")
    assert bad.returncode == 37, bad.stdout
    assert "ValueError: bad batch 7" in bad.stdout
    assert "rank 2 on node2: exited with code 37" in bad.stdout

    wrong = compose.up("'unbalanced")
    assert wrong.returncode == 2
    assert "No closing quotation" in wrong.stdout

    compose("down")
    label = f"label=com.docker.compose.project={compose.folder.name}"
    for kind in (["ps", "-a"], ["network", "ls"]):
        left = subprocess.run(
            ["docker", *kind, "-q", "--filter", label], capture_output=True, text=True, check=True
        )
        assert left.stdout == ""
