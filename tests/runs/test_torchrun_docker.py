"""`--engine torchrun` on containers."""

import subprocess

import pytest

from tests.conftest import Lab
from tests.runs.test_docker_runs import commands, docker_lab, things
from tests.runs.test_local_runs import verdict
from tests.runs.test_torchrun import ELASTIC, wait_for_all

__all__ = ["docker_lab"]

pytestmark = pytest.mark.docker

FAILING = """
import os, sys, time
print("rank", os.environ["RANK"], os.environ["MASTER_ADDR"], flush=True)
open(f"ready-{os.environ['RANK']}", "w").close()
while not all(os.path.exists(f"ready-{rank}") for rank in range(3)):
    time.sleep(0.02)
if os.environ["RANK"] == "1":
    sys.exit(7)
time.sleep(1000)
"""


def test_exact_codes_and_a_container_that_is_killed(docker_lab: Lab) -> None:
    lab = docker_lab
    three = ("-t", "pair", "--nodes", "3")
    assert lab("up", *three, timeout=300).returncode == 0
    failing = lab.script(FAILING, "failing.py")
    done = lab("run", *three, "--engine", "torchrun", failing, timeout=240)
    assert done.returncode == 7, done.stderr
    assert done.stderr.splitlines()[-1] == (
        "lab: rank 1 on node1: exited with code 7 (failing.py:8) (exit code 7)"
    )
    assert (verdict(lab)["ended"], verdict(lab)["victims"]) == ([0, 2], [])
    for rank in range(3):
        out = lab.runs()[0] / f"node{rank}" / f"rank{rank}.out"
        assert out.read_text() == f"rank {rank} node0\n"
        assert "failing.py" not in commands(lab, f"node{rank}")

    elastic = lab.script(ELASTIC)
    options = ("--engine", "torchrun", "--min-nodes", "2")
    running = lab.start("run", *three, *options, elastic)
    wait_for_all(lab, "reduced in a world of 3", 3)
    (victim,) = (name for name in things(lab) if name.endswith("node2"))
    subprocess.run(["docker", "kill", victim], check=True, capture_output=True)
    written, err = running.communicate(timeout=240)
    assert running.returncode == 0, err
    assert written.count("reduced in a world of 2 2") == 2
    assert "lab: node2 is lost (the node is gone" in err
    assert verdict(lab)["lost_nodes"] == ["node2"]
