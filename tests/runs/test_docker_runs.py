"""Whole runs on containers, through the command line: what a user does, and what is left after."""

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from lab.cli.interrupted import nodes_told
from lab.topology import load_topology
from tests.conftest import Lab
from tests.runs.test_local_runs import verdict, wait_for_output

pytestmark = pytest.mark.docker

LABEL = "multinode-lab.workdir"


def things(lab: Lab) -> list[str]:
    """Names of the containers and networks that were made for the test's folder."""
    found: list[str] = []
    for kind in (["ps", "-a"], ["network", "ls"]):
        name = "{{.Names}}" if kind[0] == "ps" else "{{.Name}}"
        argv = ["docker", *kind, "--filter", f"label={LABEL}={lab.cwd}", "--format", name]
        done = subprocess.run(argv, capture_output=True, text=True, check=True)
        found += done.stdout.split()
    return sorted(found)


@pytest.fixture
def docker_lab(lab: Lab) -> Iterator[Lab]:
    """`lab` in an empty folder, of whose nodes nothing is left afterwards."""
    yield lab
    for name in ("solo", "pair", "quad"):
        lab("down", "-t", name)
    assert things(lab) == []


ALL_REDUCE = """
import os, socket, time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
for step in range(1000):
    if step == 3 and os.environ["RANK"] == os.environ.get("RAISES"):
        print(f"raising at {time.time()}", flush=True)
        raise ValueError("boom")
    total = ones.clone()
    dist.all_reduce(total)
    assert total.item() == dist.get_world_size()
    if step == 3:
        print("reduced on", socket.gethostname(), os.environ["MASTER_ADDR"], flush=True)
        if "RAISES" not in os.environ and "STAYS" not in os.environ:
            break
    time.sleep(0.05)
dist.destroy_process_group()
"""


def test_a_torchrun_script_runs_unchanged_and_its_failure_is_told(docker_lab: Lab) -> None:
    lab = docker_lab
    script = lab.script(ALL_REDUCE)
    lab.script("nodes: 4\non: docker\nenv: {RAISES: 2}\nname: quad\n", "raises.yaml")
    assert lab("up", "-t", "quad").returncode == 0
    done = lab("run", "-t", "quad", script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"[{rank} node{rank}] reduced on node{rank} node0" for rank in range(4)
    ]
    before = things(lab)
    assert len(before) == 5

    failed = lab("run", "-t", "raises.yaml", script)
    assert failed.returncode == 1
    lines = failed.stderr.splitlines()
    words = lines.index("  ValueError: boom")
    assert lines[words - 1].strip() == 'raise ValueError("boom")'
    # Who only waited, as far as they have answered by then.
    why = ("lab: failed: rank 2 (node2, local 0) raised ValueError: boom (", "  innocent: rank")
    assert all(line.startswith(why) for line in lines[words + 1 : -1])
    assert re.match(r"lab: rank 2 on node2: ValueError: boom \(.*script.py:10\)", lines[-1])
    assert verdict(lab)["first"]["rank"] == 2

    shown = json.loads(lab("ps", "--json").stdout)
    assert [run["exit_code"] for run in shown["runs"]] == [0, 1]
    assert any(found["workdir"] == str(lab.cwd) for found in shown["labs"])
    assert lab("exec", "-t", "raises.yaml", "node3", "hostname").stdout == "node3\n"
    assert lab("exec", "-t", "raises.yaml", "node3", "sh", "-c", "exit 7").returncode == 7


def test_ranks_are_not_root_have_a_name_and_what_they_write_is_the_callers(docker_lab: Lab) -> None:
    lab = docker_lab
    script = lab.script(
        """
import getpass, os
from pathlib import Path
run = Path(os.environ["LAB_RUN_DIR"])
(run / "checkpoints").mkdir()
(run / "checkpoints" / "model.pt").write_text("weights")
Path("beside-the-script").write_text("works too")
(Path.home() / "cache").write_text("and at home")
print(os.getuid(), getpass.getuser(), Path.cwd())
"""
    )
    done = lab("run", "-t", "solo", script)
    assert done.returncode == 0, done.stderr
    uid, name, cwd = done.stdout.removeprefix("[0 node0] ").split()
    assert uid != "0"
    assert name == "lab"
    assert cwd == str(lab.cwd)
    owner = lab.cwd.stat().st_uid
    written = list(lab.runs()[0].rglob("*"))
    assert any(path.name == "model.pt" for path in written)
    assert {path.stat().st_uid for path in written} == {owner}
    assert (lab.cwd / "beside-the-script").read_text() == "works too"


def test_an_interrupted_run_takes_the_nodes_it_brought_up_along(docker_lab: Lab) -> None:
    lab = docker_lab
    script = lab.script("print('ready', flush=True)\nimport time; time.sleep(1000)")
    running = lab.start("run", "-t", "pair", script)
    wait_for_output(lab, "ready")
    assert len(things(lab)) == 3
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert running.returncode == 130
    assert things(lab) == []


@pytest.mark.parametrize("words", [["up", "-t", "pair"], ["run", "-t", "pair", "script.py"]])
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "ended by SIGTERM")],
)
def test_an_interrupt_while_nodes_come_up_says_what_became_of_them(
    docker_lab: Lab, words: list[str], number: int, code: int, said: str
) -> None:
    lab = docker_lab
    lab.script("")
    running = lab.start(*words)
    assert running.stderr is not None
    while "bringing up" not in running.stderr.readline():
        pass
    running.send_signal(number)
    _, error = running.communicate(timeout=60)
    assert running.returncode == code
    assert error.splitlines()[-1] == f"lab: {said}; no node of pair is up"
    assert things(lab) == []


def test_an_interrupt_leaves_nodes_that_were_up_and_says_so(
    docker_lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker_lab("up", "-t", "pair")
    monkeypatch.chdir(docker_lab.cwd)
    still = "the nodes of pair are still up: lab down removes them"
    with pytest.raises(KeyboardInterrupt, match=still), nodes_told(load_topology("pair")):
        raise KeyboardInterrupt


def test_nodes_that_were_up_survive_an_interrupt_and_their_ranks_do_not(docker_lab: Lab) -> None:
    lab = docker_lab
    script = lab.script("print('ready', flush=True)\nimport time; time.sleep(1234)")
    lab("up", "-t", "pair")
    running = lab.start("run", "-t", "pair", script)
    wait_for_output(lab, "ready")
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=60)
    assert len(things(lab)) == 3
    for node in ("node0", "node1"):
        assert "script.py" not in commands(lab, node)


def commands(lab: Lab, node: str) -> str:
    """Command lines of what runs on a node."""
    script = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"
    return lab("exec", "-t", "pair", node, "sh", "-c", script).stdout


def test_a_killed_controller_leaves_no_ranks_and_gc_removes_its_nodes(docker_lab: Lab) -> None:
    lab = docker_lab
    script = lab.script("print('ready', flush=True)\nimport time; time.sleep(1000)")
    running = lab.start("run", "--cold", "-t", "pair", script)
    wait_for_output(lab, "ready")
    assert "script.py" in commands(lab, "node1")
    running.kill()
    running.wait()
    for _ in range(100):
        if "script.py" not in commands(lab, "node0") + commands(lab, "node1"):
            break
        time.sleep(0.1)
    else:
        raise AssertionError("ranks outlived the controller")
    dry = lab("gc", "--dry-run")
    assert "the controller of its run" in dry.stdout
    assert len(things(lab)) == 3
    assert lab("gc").returncode == 0
    assert things(lab) == []


def test_a_node_that_goes_away_under_a_run_is_named(docker_lab: Lab) -> None:
    lab = docker_lab
    script = lab.script("print('ready', flush=True)\nimport time; time.sleep(1000)")
    lab("up", "-t", "pair")
    running = lab.start("run", "-t", "pair", script)
    wait_for_output(lab, "ready")
    (victim,) = (name for name in things(lab) if name.endswith("node1"))
    subprocess.run(["docker", "kill", victim], check=True, capture_output=True)
    _, err = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "rank 1 on node1" in err.splitlines()[-1]
    assert "the node is gone" in err.splitlines()[-1]
    assert verdict(lab)["kind"] == "node-lost"


def test_without_an_engine_the_cure_is_said(lab: Lab) -> None:
    script = lab.script("")
    done = lab("run", "-t", "pair", script, env={"DOCKER_HOST": f"unix://{lab.cwd}/no.sock"})
    assert done.returncode == 1
    assert "no Docker engine answers" in done.stderr
    assert "--on local" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_an_engine_nobody_says_that_all_is_gone(lab: Lab) -> None:
    nobody = {"DOCKER_HOST": f"unix://{lab.cwd}/no.sock"}
    down = lab("down", "-t", "pair", env=nobody)
    assert down.returncode == 1
    assert "no Docker engine answers" in down.stderr
    assert "--on local" not in down.stderr, "that would remove nothing"
    assert "as far as can be seen: no Docker engine answers" in lab("ps", env=nobody).stdout
    assert "no Docker engine answers" in lab("gc", "--dry-run", env=nobody).stdout


def test_a_rank_killed_for_want_of_memory_is_told_with_the_limit(docker_lab: Lab) -> None:
    lab = docker_lab
    lab.script("name: solo\nnodes: 1\non: docker\ndocker: {memory: 256m}\n", "small.yaml")
    script = lab.script("grow = [bytearray(b'x' * (64 << 20)) for _ in range(20)]")
    done = lab("run", "--cold", "-t", "small.yaml", script)
    assert done.returncode == 137
    assert "killed: out of memory (the node's limit is 256m)" in done.stderr.splitlines()[-1]
    assert verdict(lab)["first"]["oom_limit"] == 256 << 20


def test_a_stopped_rank_in_a_container_is_named_and_its_stack_read(docker_lab: Lab) -> None:
    lab = docker_lab
    script = lab.script("""
import os, pathlib, signal, time
stopped = pathlib.Path("stopped")
if os.environ["RANK"] == "1":
    stopped.touch(); os.kill(os.getpid(), signal.SIGSTOP)
while not stopped.exists(): pass
time.sleep(600)
""")
    argv = ("-t", "pair", "--on", "docker", "--stall", "2s", "--on-stall", "stop")
    done = lab("run", *argv, script, timeout=240)
    assert done.returncode == 75, done.stderr
    assert (verdict(lab)["why"]["kind"], verdict(lab)["why"]["ranks"]) == ("paused", [1])
    evidence = json.loads((lab.runs()[-1] / "why.json").read_text())["evidence"]
    # No capability is needed for it: ranks and agent are the same user.
    assert evidence["ranks"]["1"]["source"] == "py-spy", evidence["ranks"]["1"]["error"]
    assert evidence["ranks"]["1"]["threads"][0]["frames"][0]["line"] == 5
    assert {name: node["peers"] for name, node in evidence["nodes"].items()} == {
        "node0": {"node1": "ok"},
        "node1": {"node0": "ok"},
    }


def test_what_was_not_up_is_not_said_to_be_down(docker_lab: Lab) -> None:
    lab = docker_lab
    assert lab("up", "-t", "solo", timeout=240).returncode == 0
    said = lab("down", "-t", "pair")
    assert (said.returncode, said.stdout.splitlines()) == (
        0,
        [
            "lab: pair was not up in this folder",
            "lab: still up in this folder: solo (lab down -t, with its file or name)",
        ],
    )
    assert lab("down", "-t", "solo").stdout == "lab: solo is down\n"
    assert things(lab) == []
