"""Runs of which something is killed with kill -9 at a random moment leave nothing behind.

What a run's processes are is not guessed: each holds a lock on a file of its rank, which it
inherited, and agents and ranks have told their pids in events.jsonl.
"""

import fcntl
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from lab.node.processes import started
from tests.conftest import Lab
from tests.runs.test_docker_runs import LABEL, things

SEED = int(os.environ.get("LAB_KILL_SEED") or random.randrange(1_000_000))
"""Printed with a failure; the variable repeats it."""

SCRIPT = """
import fcntl, multiprocessing, os, subprocess, time
held = os.open("held-" + os.environ["RANK"], os.O_CREAT | os.O_RDWR, 0o666)
fcntl.flock(held, fcntl.LOCK_SH)
os.set_inheritable(held, True)
worker = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
worker.start()  # as a DataLoader's
subprocess.Popen(["sleep", "1000"], close_fds=False)
if os.fork() == 0:  # a daemon, as they are made
    os.setsid()
    if os.fork() == 0:
        time.sleep(1000)
    os._exit(0)
print("ready", flush=True)
time.sleep(1000)
"""


class Run:
    """One `lab run` of SCRIPT on two nodes, and the means to kill its parts."""

    def __init__(self, lab: Lab, where: str, *options: str) -> None:
        self._lab = lab
        self._where = where
        self._before = set(lab.runs())
        argv = ["run", "-t", "pair", "--on", where, *options, lab.script(SCRIPT)]
        self.controller = lab.start(*argv)

    @property
    def events(self) -> list[dict[str, Any]]:
        """What has happened so far."""
        for run in set(self._lab.runs()) - self._before:
            if (run / "events.jsonl").exists():
                lines = (run / "events.jsonl").read_text().splitlines()
                return [json.loads(line) for line in lines if line.endswith("}")]
        return []

    def wait_for_ranks(self) -> None:
        for _ in range(2400):  # on a busy machine torch takes its time
            if sum(event["type"] == "started" for event in self.events) == 2:
                return
            assert self.controller.poll() is None, self.controller.communicate()
            time.sleep(0.05)
        raise AssertionError("no ranks")

    def pids(self, kind: str) -> list[tuple[str, int]]:
        """Nodes and pids there, of agents (`hello`) or ranks (`started`)."""
        return [(e["node"], e["pid"]) for e in self.events if e["type"] == kind]

    def kill(self, node: str, pid: int) -> None:
        if self._where == "local":
            os.kill(pid, signal.SIGKILL)
        else:
            on_node(self._lab, node, f"kill -9 {pid}")

    def kill_controller(self) -> None:
        self.controller.kill()
        self.controller.wait()

    def left(self) -> list[str]:
        """Agents and ranks that are still there."""
        found = []
        for node, pid in self.pids("hello") + self.pids("started"):
            if self._where == "local":
                if started(pid) is not None:
                    found.append(f"{node}: {pid}")
            elif on_node(self._lab, node, f"[ -d /proc/{pid} ] && echo there"):
                found.append(f"{node}: {pid}")
        return found


def on_node(lab: Lab, node: str, command: str) -> str:
    """The output of a shell command, by root, in a container of the test; empty if it has gone."""
    label = ["--filter", f"label={LABEL}={lab.cwd}", "--filter", "label=multinode-lab.node=" + node]
    argv = ["docker", "ps", "-q", *label]
    container = subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()
    if not container:
        return ""
    argv = ["docker", "exec", "--user=0:0", container, "sh", "-c", command]
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def held(lab: Lab) -> list[str]:
    """The files of ranks of which some process is left."""
    found = []
    for path in lab.cwd.glob("held-*"):
        with path.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                found.append(path.name)
    return found


def labelled(lab: Lab) -> list[str]:
    """Processes with the label of a run of the test's folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("LAB_RUN_DIR", "").startswith(f"{lab.cwd}/"):
                found.append(str(process))
        except psutil.Error:
            continue
    return found


def nothing_is_left(lab: Lab, run: Run, what: str) -> None:
    """At most the kernel's moment after `lab gc`, where a kill of the agent made it needed."""
    for _ in range(100):
        left = [*held(lab), *run.left(), *labelled(lab)]
        if not left:
            return
        time.sleep(0.05)
    raise AssertionError(f"left after {what} (LAB_KILL_SEED={SEED}): {left}")


def kill(run: Run, what: str, random_: random.Random) -> None:
    """Kill a part of a run at a random moment of its life."""
    if what == "start":
        time.sleep(random_.uniform(0.1, 1.5))
        run.kill_controller()
        return
    run.wait_for_ranks()
    time.sleep(random_.uniform(0, 1))
    if what == "rank":
        run.kill(*random_.choice(run.pids("started")))
    if what == "agent":
        run.kill(*random_.choice(run.pids("hello")))
    if what in ("both", "cold"):  # so that no one is left to tidy up
        agents = run.pids("hello")
        os.kill(run.controller.pid, signal.SIGSTOP)  # it must not notice the agents' end
        for node, pid in agents:
            run.kill(node, pid)
    if what in ("both", "cold", "controller"):
        run.kill_controller()
    else:
        run.controller.communicate(timeout=60)


@pytest.mark.parametrize("what", ["controller", "both", "agent", "rank", "start"])
def test_kills_on_local_nodes(lab: Lab, what: str) -> None:
    random_ = random.Random(f"{SEED} local {what}")
    for tidy_up in (["gc"], ["rm", "--all-finished"]):
        run = Run(lab, "local")
        kill(run, what, random_)
        if what == "both":
            dry = json.loads(lab("gc", "--dry-run", "--json").stdout)["removed"]
            own = [line for line in dry if any(run.name in line for run in lab.runs())]
            assert len(own) >= 2, dry  # each rank's daemon
            assert held(lab), "the dry run must end nothing"
            lab(*tidy_up)
        nothing_is_left(lab, run, what)
    states = {run["state"] for run in json.loads(lab("ps", "--json").stdout)["runs"]}
    assert states <= ({"finished"} if what in ("agent", "rank") else {"died"})


@pytest.fixture
def pair(lab: Lab) -> Iterator[Lab]:
    """`lab` in an empty folder, and of its nodes nothing afterwards."""
    yield lab
    lab("down", "-t", "pair")
    assert things(lab) == []


@pytest.mark.docker
@pytest.mark.timeout(600)
def test_kills_on_nodes_that_stay(pair: Lab) -> None:
    random_ = random.Random(f"{SEED} docker")
    assert pair("up", "-t", "pair").returncode == 0
    for what in ("controller", "both", "agent", "rank", "cold", "start"):
        run = Run(pair, "docker", *(["--cold"] if what == "cold" else []))
        kill(run, what, random_)
        if what == "cold":
            assert any(path.name in pair("gc", "--dry-run").stdout for path in pair.runs()), (
                "the daemons are told with their run"
            )
            pair("rm", "--all-finished")  # they are found all the same
        pair("gc")
        nothing_is_left(pair, run, what)
    assert len(things(pair)) == 3  # the nodes are as good as before


@pytest.mark.docker
@pytest.mark.parametrize("what", ["controller", "both", "start"])
def test_kills_on_nodes_that_a_run_brought_up(pair: Lab, what: str) -> None:
    run = Run(pair, "docker")
    kill(run, what, random.Random(f"{SEED} own {what}"))
    pair("gc")
    assert things(pair) == [], f"LAB_KILL_SEED={SEED}"
    nothing_is_left(pair, run, what)


@pytest.mark.docker
def test_a_node_that_is_killed_takes_no_other_with_it(pair: Lab) -> None:
    assert pair("up", "-t", "pair").returncode == 0
    run = Run(pair, "docker")
    run.wait_for_ranks()
    (victim,) = (name for name in things(pair) if name.endswith("node1"))
    subprocess.run(["docker", "kill", victim], check=True, capture_output=True)
    run.controller.communicate(timeout=60)
    assert run.controller.returncode == 1
    nothing_is_left(pair, run, "node")
    pair("gc")  # a lab of which a node is dead
    assert things(pair) == []
