"""Beginning again: after a failure, and on another port."""

import json
import os
import socket

import pytest

from tests.conftest import Lab
from tests.runs.test_local_runs import verdict

COUNTING = """
import os, sys, time
from pathlib import Path
count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
most = os.environ["TORCHELASTIC_MAX_RESTARTS"]
print("attempt", count, "of", most, "pid", os.getpid(), flush=True)
there = Path(f"started-{count}")
if os.environ["RANK"] == "0":
    there.touch()
elif count < 2:
    while not there.exists():
        time.sleep(0.02)
    sys.exit(7)
time.sleep(1000 if count < 2 else 0)
"""


def events(lab: Lab, kind: str) -> list[dict[str, object]]:
    lines = (lab.runs()[-1] / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["type"] == kind]


def test_all_ranks_begin_again_with_the_same_numbers(lab: Lab) -> None:
    script = lab.script(COUNTING)
    done = lab("run", "-t", "pair", "--on", "local", "--max-restarts", "3", script)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("beginning again") == 2
    for rank in range(2):
        lines = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank} ")]
        words = [line.split() for line in lines]
        assert [(w[3], w[5]) for w in words] == [("0", "3"), ("1", "3"), ("2", "3")]
        assert len({w[-1] for w in words}) == 3
    assert verdict(lab)["kind"] == "ok"
    assert [event["count"] for event in events(lab, "restart")] == [1, 2]


def test_the_last_failure_counts_when_no_restart_is_left(lab: Lab) -> None:
    script = lab.script(COUNTING)
    done = lab("run", "-t", "pair", "--on", "local", "--max-restarts", "1", script)
    assert done.returncode == 7
    assert done.stderr.count("beginning again") == 1


TAKEN_ONCE = """
import os, sys
from pathlib import Path
if os.environ["RANK"] == "0" and not Path("tried").exists():
    Path("tried").write_text(os.environ["MASTER_PORT"])
    raise RuntimeError(f"port: {os.environ['MASTER_PORT']}, code: -98, name: EADDRINUSE")
print(os.environ["MASTER_PORT"], os.environ["TORCHELASTIC_RESTART_COUNT"])
"""


def test_another_port_is_picked_where_rank_0_finds_it_taken(lab: Lab) -> None:
    script = lab.script(TAKEN_ONCE)
    done = lab("run", "-t", "solo", "--on", "local", script)
    assert done.returncode == 0, done.stderr
    port, restarts = done.stdout.split()[2:]
    assert restarts == "0"  # it is no failure of the script's
    assert port != (lab.cwd / "tried").read_text()


OWN_PORT = """
import os
from pathlib import Path
import torch.distributed as dist
with Path("begun").open("a") as file:
    file.write(os.environ["RANK"])
dist.TCPStore("127.0.0.1", {port}, is_master=True)
"""


def test_a_port_of_the_scripts_own_is_the_scripts_affair(lab: Lab) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        script = lab.script(OWN_PORT.format(port=server.getsockname()[1]))
        done = lab("run", "-t", "solo", "--on", "local", script)
    assert done.returncode == 1
    assert "EADDRINUSE" in done.stderr.splitlines()[-1]
    assert (lab.cwd / "begun").read_text() == "0"


@pytest.mark.skipif("sys.platform != 'linux'", reason="the holder is read from /proc")
def test_the_holder_of_a_fixed_port_is_named(lab: Lab) -> None:
    script = lab.script("print('never')")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        lab.script(f"nodes: 2\non: local\nmaster: {{port: {port}}}\n", "lab.yaml")
        done = lab("run", script)
    assert done.returncode == 1
    assert f"port {port} is taken by pid" in done.stderr
    assert f"by pid {os.getpid()} " in done.stderr
    assert done.stdout == ""


def test_two_runs_with_one_fixed_port_do_not_meet(lab: Lab) -> None:
    lab.script("nodes: 2\non: local\nmaster: {port: 21987}\n", "lab.yaml")
    script = lab.script(
        "import time\nfrom pathlib import Path\nprint('ready', flush=True)\n"
        "while not Path('done').exists(): time.sleep(0.02)"
    )
    first = lab.start("run", script)
    assert first.stdout is not None
    assert "ready" in first.stdout.readline()
    second = lab("run", script)
    assert "port 21987 is taken by another run of lab" in second.stderr
    (lab.cwd / "done").touch()
    first.communicate(timeout=30)
    assert first.returncode == 0
