"""Runs on a host behind a real SSH server: the same controller, another place."""

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.conftest import Lab
from tests.sshd import Sshd, SshPlace

DEADLINE = 120.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A server for all tests of this file."""
    running = Sshd(tmp_path_factory.mktemp("sshd")).start()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def place(lab: Lab, server: Sshd) -> Iterator[SshPlace]:
    """Two ranks on one host, whose folder is not this one; ended with the test."""
    made = SshPlace(lab.cwd.parent / f"{lab.cwd.name}-host", server)
    (lab.cwd / "lab.yaml").write_text(f"{made.topology()}slots: 2\n")
    try:
        yield made
    finally:
        down = lab("down", env=made.env)
        assert down.returncode == 0, down.stderr


def wait_for(path: Path) -> str:
    """The content of a file that appears whole, by a rename."""
    give_up = time.monotonic() + DEADLINE
    while time.monotonic() < give_up:
        try:
            return path.read_text()
        except FileNotFoundError:
            time.sleep(0.05)
    raise AssertionError(f"{path} does not appear")


def wait_for_end(pid: int) -> None:
    give_up = time.monotonic() + DEADLINE
    while psutil.pid_exists(pid):
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return
        except psutil.NoSuchProcess:
            return
        assert time.monotonic() < give_up, f"{pid} still runs"
        time.sleep(0.05)


def test_a_run_from_the_code_to_what_it_leaves(lab: Lab, place: SshPlace) -> None:
    lab.script("VALUE = 'there'\n", "beside.py")
    lab.script(
        """
import os, sys
import beside
import lab.node.protocol  # travels along
rank = os.environ["RANK"]
print(beside.VALUE, os.getcwd(), sys.argv[1:], os.environ["LOCAL_RANK"], os.environ["WORLD_SIZE"])
with open(os.environ["LAB_RUN_DIR"] + f"/made-{rank}.txt", "w") as file:
    file.write(rank)
with open(os.environ["LAB_RUN_DIR"] + "/topology.yaml", "w") as file:
    file.write("not the controller's")
"""
    )
    done = lab("run", "script.py", "two words", "$x", env=place.env)
    assert done.returncode == 0, done.stderr
    (run,) = lab.runs()
    for rank in range(2):
        said = (run / "h0" / f"rank{rank}.out").read_text()
        assert said.startswith(f"there {place.host}/")
        assert said.endswith(f"['two words', '$x'] {rank} 2\n")
        assert (run / f"made-{rank}.txt").read_text() == str(rank)
    assert "name: one" in (run / "topology.yaml").read_text()
    assert (run / "h0" / "topology.yaml").read_text() == "not the controller's"
    assert list(place.host.glob("*/runs/*")) == []  # all of it has come
    assert not (lab.cwd / "agents").exists()


def test_the_first_failure_wins(lab: Lab, place: SshPlace) -> None:
    lab.script(
        "import os, time\nif os.environ['RANK'] == '1': raise SystemExit(7)\ntime.sleep(600)"
    )
    done = lab("run", "script.py", env=place.env)
    assert done.returncode == 7
    assert "rank 1 on h0" in done.stderr


def test_input_reaches_rank_0(lab: Lab, place: SshPlace) -> None:
    lab.script("import os\nif os.environ['RANK'] == '0': print('heard', input())")
    (lab.cwd / "answer").write_text("yes\n")
    with (lab.cwd / "answer").open() as file:
        done = lab("run", "script.py", env=place.env, stdin=file.fileno())
    assert done.returncode == 0, done.stderr
    assert "heard yes" in done.stdout


SLEEPER = """
import os, time
own = os.environ["PLACE"] + "/" + os.environ["RANK"]
with open(own + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(own + ".new", own)
time.sleep(600)
"""


def test_a_lost_connection_ends_the_ranks_and_the_run(lab: Lab, place: SshPlace) -> None:
    lab.script(SLEEPER)
    process = lab.start("run", "--env", f"PLACE={place.folder}", "script.py", env=place.env)
    pids = [int(wait_for(place.folder / str(rank))) for rank in range(2)]
    place.server.cut()
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 1
    assert f"@127.0.0.1:{place.server.port} was lost" in err
    for pid in pids:
        wait_for_end(pid)
    (run,) = lab.runs()
    assert json.loads((run / "verdict.json").read_text())["first"]["kind"] == "node-lost"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_controller(number: int, lab: Lab, place: SshPlace) -> None:
    lab.script(SLEEPER)
    options = ["--grace", "1", "--env", f"PLACE={place.folder}"]
    process = lab.start("run", *options, "script.py", env=place.env)
    pids = [int(wait_for(place.folder / str(rank))) for rank in range(2)]
    os.kill(process.pid, number)
    process.communicate(timeout=DEADLINE)
    for pid in pids:
        wait_for_end(pid)


def test_a_restart_connects_again(lab: Lab, place: SshPlace) -> None:
    first = "if os.environ['TORCHELASTIC_RESTART_COUNT'] == '0': time.sleep"
    lab.script(SLEEPER.replace("time.sleep", first))
    options = ["--max-restarts", "1", "--env", f"PLACE={place.folder}"]
    process = lab.start("run", *options, "script.py", env=place.env)
    for rank in range(2):
        wait_for(place.folder / str(rank))
    place.server.cut()
    _, err = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, err


def test_exec_starts_where_the_code_is(lab: Lab, place: SshPlace) -> None:
    lab.script("")
    before = lab("exec", "h0", "--", "sh", "-c", "pwd; echo $LAB_NODE; exit 3", env=place.env)
    assert (before.returncode, before.stdout) == (3, f"{Path.home()}\nh0\n")
    assert lab("up", env=place.env).returncode == 0
    after = lab("exec", "h0", "ls", env=place.env)
    assert "script.py" in after.stdout


def test_down_leaves_no_process(lab: Lab, place: SshPlace) -> None:
    lab.script("import os; print('pid', os.getppid())")
    assert lab("run", "script.py", env=place.env).returncode == 0  # leaves a warm process
    down = lab("down", env=place.env)
    assert down.returncode == 0, down.stderr
    assert not (place.host / "agents").exists()
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        assert not any(str(place.host) in word for word in words), words


def test_a_function_is_not_for_hosts(lab: Lab, place: SshPlace) -> None:
    lab.script("from lab import run\ndef f(): pass\nif __name__ == '__main__': run(f)\n", "main.py")
    process = psutil.Popen(
        [sys.executable, "main.py"], cwd=lab.cwd, env={**os.environ, **place.env}, stderr=-1
    )
    _, err = process.communicate(timeout=DEADLINE)
    assert b"functions are not for hosts" in err


def test_a_second_run_finds_a_warm_process(lab: Lab, place: SshPlace) -> None:
    lab.script("import sys; print('torch' in sys.modules)")
    give_up = time.monotonic() + DEADLINE
    while "True" not in (done := lab("run", "script.py", env=place.env)).stdout:
        assert done.returncode == 0, done.stderr
        assert time.monotonic() < give_up, "all runs start from nothing"
