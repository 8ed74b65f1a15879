"""One rank as a scheduler starts it: what it keeps in the run directory, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.node.places import PlaceError, place_of
from lab.node.processes import started
from lab.node.questions import RankQuestion, rank_answer
from lab.node.task import NODES

NAMES: dict[str, Any] = {
    "topology": "quad",
    "names": ["a", "b"],
    "slots": [2, 1],
    "elastic": False,
}
PLACE = {
    "RANK": "2",
    "LOCAL_RANK": "0",
    "WORLD_SIZE": "3",
    "LOCAL_WORLD_SIZE": "1",
    "NODE_RANK": "1",
    "NNODES": "2",
    "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500",
}


def start(folder: Path, script: str, env: Mapping[str, str] = PLACE) -> subprocess.Popen[str]:
    run = folder / "runs/20260101-quad"
    run.mkdir(parents=True, exist_ok=True)
    (run / NODES).write_text(json.dumps(NAMES))
    (folder / "script.py").write_text(script)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "lab.node.task", "script.py", "--from", "{node_rank}"],
        cwd=folder,
        env={**os.environ, **env, "LAB_RUN_DIR": str(run)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def events(folder: Path) -> list[dict[str, Any]]:
    path = folder / "runs/20260101-quad/b/rank2.events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_output_events_and_contract(tmp_path: Path) -> None:
    script = """
import json, os, sys
print(json.dumps([dict(os.environ), sys.argv]))
print("to stderr", file=sys.stderr)
"""
    process = start(tmp_path, script)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err == "to stderr\n"
    run = tmp_path / "runs/20260101-quad"
    assert (run / "b/rank2.out").read_text() == out
    assert (run / "b/rank2.err").read_text() == err
    env, argv = json.loads(out)
    assert argv == ["script.py", "--from", "1"]
    expected = {"ROLE_RANK": "2", "GROUP_RANK": "1", "LAB_NODE": "b", "LAB_RUN_DIR": str(run)}
    assert {**env, **expected, **PLACE} == env
    first, last = events(tmp_path)
    assert (first["type"], first["rank"], first["node"]) == ("started", 2, "b")
    assert first["world"] == {"master": "127.0.0.1:29500", "ranks": 3}
    assert (last["type"], last["code"], last["signal"]) == ("exit", 0, None)
    assert first["at"] <= last["at"]


def test_an_exception_is_told(tmp_path: Path) -> None:
    process = start(tmp_path, "raise ValueError('no such luck')")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "ValueError: no such luck" in err
    types = [event["type"] for event in events(tmp_path)]
    assert types == ["started", "exception", "state", "exit", "asked"]
    assert events(tmp_path)[1]["message"] == "no such luck"


def test_a_question_in_the_run_directory_is_answered_there(tmp_path: Path) -> None:
    run = tmp_path / "runs/20260101-quad"
    run.mkdir(parents=True)
    before = RankQuestion(run, "state")
    process = start(tmp_path, "import time\nprint('here', flush=True)\ntime.sleep(600)\n")
    try:
        assert wait_for_word(process) == "here"
        late, pulse, question = (RankQuestion(run, what) for what in ("state", "pulse", "state"))
        late.close()  # its answers are read no more
        while not (question.answers({2}) and pulse.answers({2})):
            assert process.poll() is None
            time.sleep(0.1)
        state, beat = question.answers({2})[2], pulse.answers({2})[2]
        assert (state["rank"], state["node"], state["source"]) == (2, "b", "probe")
        assert state["probe"]["threads"][0]["frames"][0]["line"] == 3
        assert "threads" not in beat["probe"]
        assert before.answers({2}) == {}
        assert not rank_answer(run, late.number, 2).parent.exists()
        assert [event["type"] for event in events(tmp_path)] == ["started"]
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def wait_for_word(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


HANDLES = """
import os, signal, sys, time
def told(*_):
    print("told", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, told)
print(os.getpid(), flush=True)
while True:
    time.sleep(0.1)
"""


def test_a_request_to_end_reaches_the_rank(tmp_path: Path) -> None:
    process = start(tmp_path, HANDLES)
    pid = int(wait_for_word(process))
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("told\n", 7)
    assert started(pid) is None


def test_a_killed_rank_ends_as_a_shell_says_it(tmp_path: Path) -> None:
    process = start(tmp_path, HANDLES)
    os.kill(int(wait_for_word(process)), signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == 137
    (last,) = [event for event in events(tmp_path) if event["type"] == "exit"]
    assert last["signal"] == 9


def test_the_rank_dies_with_its_task(tmp_path: Path) -> None:
    process = start(tmp_path, HANDLES)
    pid = int(wait_for_word(process))
    process.kill()
    process.communicate(timeout=60)
    for _ in range(200):
        if started(pid) is None:
            return
        time.sleep(0.05)
    raise AssertionError("it still runs")


DEAF = """
import os, signal
os.kill(os.getpid(), signal.SIGUSR2)
os.kill(os.getppid(), signal.SIGUSR2)
print("still here")
"""


def test_the_warning_is_for_those_that_handle_it(tmp_path: Path) -> None:
    """As the job script starts ranks: with SIGUSR2 ignored, until a script has a handler for it."""
    before = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    try:
        deaf = start(tmp_path / "deaf", DEAF)
        process = start(tmp_path, HANDLES.replace("SIGTERM", "SIGUSR2"))
    finally:
        signal.signal(signal.SIGUSR2, before)
    pid = int(wait_for_word(process))
    for one in (process.pid, pid):  # as Slurm does: everybody in the job
        os.kill(one, signal.SIGUSR2)
    assert process.communicate(timeout=60)[0] == "told\n"
    assert process.returncode == 7
    assert deaf.communicate(timeout=60)[0] == "still here\n"
    assert deaf.returncode == 0


def test_a_rank_elsewhere_than_in_the_topology_is_refused(tmp_path: Path) -> None:
    process = start(tmp_path, "", {**PLACE, "RANK": "1"})
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "rank 1 is local rank 0 of b, where the topology has rank 2" in err
    env = {**PLACE, "RANK": "1", "LAB_RUN_DIR": "/runs/r"}
    with pytest.raises(PlaceError):
        place_of(env, NAMES)
    name, contract = place_of(env, {**NAMES, "elastic": True})
    assert (name, contract["RANK"]) == ("b", "1")


def test_what_torchrun_says_of_store_and_restarts_stays() -> None:
    torchs = {
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "2",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_RUN_ID": "17.0",
    }
    _, contract = place_of({**PLACE, **torchs, "LAB_RUN_DIR": "/runs/r"}, NAMES)
    assert {**contract, **torchs} == contract
    assert contract["LAB_RUN_ID"] == "r"


def test_no_shared_file_system(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "lab.node.task", "script.py"],
        env={**os.environ, **PLACE, "LAB_RUN_DIR": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "must be on a file system that all hosts share" in done.stderr


def test_a_run_directory_that_cannot_be_written(tmp_path: Path) -> None:
    run = tmp_path / "runs/20260101-quad"
    run.mkdir(parents=True)
    (run / "b").write_text("in the way")
    process = start(tmp_path, "")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert err.startswith(f"lab: error: {run}/b cannot be written on ")
    assert len(err.splitlines()) == 1
