"""`--engine torchrun`: PyTorch's elastic agent starts the ranks, and lab's promises hold."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import Lab
from tests.runs.test_contract import ARGUMENTS, DUMP, FREE, OF_THE_PLACE, OF_THE_PROCESS, OURS
from tests.runs.test_local_runs import verdict
from tests.runs.test_restarts import COUNTING, events

TORCHRUN = ("--on", "local", "--engine", "torchrun")

FAILING = """
import os, signal, sys, time
rank = int(os.environ["RANK"])
for i in range(2000):
    print("line", i)
os.write(2, b"not utf-8: \\xff\\n")
print("place", rank, os.environ["NODE_RANK"], os.environ["LAB_NODE"], flush=True)
open(f"ready-{rank}", "w").close()
if rank != 1:
    time.sleep(1000)
while not all(os.path.exists(f"ready-{r}") for r in range(4)):
    time.sleep(0.02)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(7)
"""


def processes_of(run: Path) -> list[psutil.Process]:
    """Processes that were started for a run, as their environment says; waits for their end."""
    name = f"LAB_RUN_ID={run.name}".encode()
    for _ in range(100):
        found = []
        for process in psutil.process_iter():
            try:
                if name in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                    found.append(process)
            except OSError:
                continue
        if not found:
            break
        time.sleep(0.1)
    return found


def wait_for_all(lab: Lab, text: str, ranks: int) -> None:
    for _ in range(1200):
        if sum(text in path.read_text() for path in lab.cwd.glob("runs/*/*/rank*.out")) == ranks:
            return
        time.sleep(0.1)
    raise AssertionError(f"not all ranks wrote {text!r}")


def agent_of(lab: Lab, node: str) -> int:
    (pid,) = (event["pid"] for event in events(lab, "hello") if event["node"] == node)
    assert isinstance(pid, int)
    return pid


@pytest.mark.parametrize(("how", "code"), [("exit", 7), ("kill", 137)])
def test_a_failure_ends_all_nodes_with_its_own_code_and_all_logs(
    lab: Lab, how: str, code: int
) -> None:
    script = lab.script(FAILING)
    done = lab("run", "-t", "quad2x2", "-q", *TORCHRUN, script, how)
    assert done.returncode == code, done.stderr
    first = verdict(lab)["first"]
    assert (first["rank"], first["node"], first["exit_code"]) == (1, "node0", code)
    assert verdict(lab)["kind"] == {"exit": "exit", "kill": "signal"}[how]
    assert (verdict(lab)["ended"], verdict(lab)["others"]) == ([0, 2, 3], [])
    assert ("SIGKILL" in done.stderr.splitlines()[-1]) == (how == "kill")
    lines = "".join(f"line {i}\n" for i in range(2000))
    for rank in range(4):
        node = f"node{rank // 2}"
        place = f"place {rank} {rank // 2} {node}\n"
        assert (lab.runs()[0] / node / f"rank{rank}.out").read_text() == lines + place
        err = (lab.runs()[0] / node / f"rank{rank}.err").read_bytes()
        assert err == b"not utf-8: \xff\n"
    assert len(events(lab, "exit")) == 4
    assert processes_of(lab.runs()[0]) == []


def test_an_exception_is_told_with_its_place(lab: Lab) -> None:
    script = lab.script("def f():\n    raise KeyError('spam')\n\nf()\n")
    done = lab("run", "-t", "solo", *TORCHRUN, "--min-nodes", "1", script)
    assert done.returncode == 1
    first = verdict(lab)["first"]
    assert (first["exception"], first["message"], first["line"]) == ("KeyError", "'spam'", 2)
    assert "Traceback" in (lab.runs()[0] / "node0" / "rank0.err").read_text()


def test_the_whole_job_begins_again_as_without_torchrun(lab: Lab) -> None:
    script = lab.script(COUNTING)
    done = lab("run", "-t", "pair", *TORCHRUN, "--max-restarts", "3", script)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("beginning again") == 2
    for rank in range(2):
        lines = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank} ")]
        words = [line.split() for line in lines]
        assert [(w[3], w[5]) for w in words] == [("0", "3"), ("1", "3"), ("2", "3")]
    assert [event["count"] for event in events(lab, "restart")] == [1, 2]


FAILING_ONCE = """
import os, sys, time
from pathlib import Path
here, other = Path(os.environ["RANK"]), Path(str(1 - int(os.environ["RANK"])))
again = Path("failed").exists()
here.touch()
while not other.exists():
    time.sleep(0.02)
print("again" if again else "first", flush=True)
if not again and os.environ["RANK"] == "1" or len(sys.argv) > 1 and os.environ["RANK"] == "1":
    Path("failed").touch()
    sys.exit(7)
time.sleep(0 if again and len(sys.argv) == 1 else 1000)
"""


def test_torchrun_begins_again_itself_where_it_may_form_new_worlds(lab: Lab) -> None:
    script = lab.script(FAILING_ONCE)
    options = ("--min-nodes", "2", "--max-restarts", "1")
    done = lab("run", "-t", "pair", *TORCHRUN, *options, script)
    assert done.returncode == 0, done.stderr
    failed = "rank 1 on node1: exited with code 7 (script.py:12)"
    assert f"{failed}: beginning again with 2 ranks" in done.stderr
    assert len(events(lab, "run")) == 1
    assert [event["count"] for event in events(lab, "restart")] == [1]
    assert len(events(lab, "started")) == 4
    found = verdict(lab)
    assert (found["kind"], found["first"], found["lost_nodes"]) == ("ok", None, [])


def test_the_last_failure_counts_when_torchrun_gives_up(lab: Lab) -> None:
    script = lab.script(FAILING_ONCE)
    options = ("--min-nodes", "2", "--max-restarts", "1")
    done = lab("run", "-t", "pair", *TORCHRUN, *options, script, "always")
    assert done.returncode == 7, done.stderr
    assert done.stderr.count("beginning again") == 1
    assert (verdict(lab)["first"]["rank"], verdict(lab)["ended"]) == (1, [0])


ELASTIC = """
import os
import time
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
world = dist.get_world_size()
for step in range(2000 if world == 3 else 5):
    total = torch.ones(1)
    dist.all_reduce(total)
    assert total.item() == world
    time.sleep(0.05)
    if step == 3:
        print("reduced in a world of", world, os.environ["NNODES"], flush=True)
dist.destroy_process_group()
"""


def test_the_others_go_on_without_a_node_that_is_lost(lab: Lab) -> None:
    script = lab.script(ELASTIC)
    options = ("-t", "solo", "--nodes", "3", "--min-nodes", "2")
    running = lab.start("run", *options, *TORCHRUN, script)
    wait_for_all(lab, "reduced in a world of 3", 3)
    os.kill(agent_of(lab, "node2"), signal.SIGKILL)
    out, err = running.communicate(timeout=120)
    assert running.returncode == 0, err
    assert out.count("reduced in a world of 3 3") == 3
    assert out.count("reduced in a world of 2 2") == 2
    assert "lab: node2 is lost (its agent was ended by SIGKILL" in err
    assert "beginning again with 2 ranks on 2 nodes" in err
    assert err.splitlines()[-1].endswith("without node2")
    assert verdict(lab)["lost_nodes"] == ["node2"]
    assert [event["node"] for event in events(lab, "lost")] == ["node2"]
    assert processes_of(lab.runs()[0]) == []


SLEEPING = "import time; print('ready', flush=True); time.sleep(1000)"


@pytest.mark.parametrize(
    ("node", "least", "words"),
    [("node0", 1, "the store by which"), ("node1", 2, "--min-nodes 2 are not left")],
)
def test_a_node_without_which_it_cannot_go_on_is_named(
    lab: Lab, node: str, least: int, words: str
) -> None:
    script = lab.script(SLEEPING)
    options = ("-t", "pair", "--min-nodes", str(least))
    running = lab.start("run", *options, *TORCHRUN, script)
    wait_for_all(lab, "ready", 2)
    os.kill(agent_of(lab, node), signal.SIGKILL)
    _, err = running.communicate(timeout=120)
    assert running.returncode == 1
    assert f"on {node}: its agent was ended by SIGKILL" in err.splitlines()[-1]
    assert words in err.splitlines()[-1]
    found = verdict(lab)
    assert (found["kind"], found["first"]["node"]) == ("node-lost", node)
    assert processes_of(lab.runs()[0]) == []


CHILDREN = """
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["setsid", "sleep", "1000"])
print("ready", flush=True)
time.sleep(1000)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_outlives_the_controllers_end(lab: Lab, number: signal.Signals) -> None:
    script = lab.script(CHILDREN)
    running = lab.start("run", "-t", "pair", "--grace", "1", *TORCHRUN, script)
    wait_for_all(lab, "ready", 2)
    running.send_signal(number)
    running.communicate(timeout=60)
    assert running.returncode == {signal.SIGINT: 130, signal.SIGKILL: -9}[number]
    assert processes_of(lab.runs()[0]) == []


@pytest.mark.parametrize("options", [(), ("--min-nodes", "1")])
def test_the_environment_is_torchruns_own(lab: Lab, options: tuple[str, ...]) -> None:
    script = lab.script(DUMP)
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    for name in ("torchrun", "ours"):
        (lab.cwd / name).mkdir()
    torchrun = str(Path(sys.executable).parent / "torchrun")
    standalone = ["--standalone", "--nproc-per-node=2", script, "torchrun"]
    subprocess.run([torchrun, *standalone], cwd=lab.cwd, env=env, check=True, capture_output=True)
    run = ["-m", "lab", "run", "-t", "solo", "--slots", "2", *TORCHRUN, *options, script, "ours"]
    subprocess.run([sys.executable, "-P", *run], cwd=lab.cwd, env=env, check=True)
    for rank in range(2):
        theirs, ours = (
            json.loads((lab.cwd / name / f"{rank}.json").read_text())
            for name in ("torchrun", "ours")
        )
        extra = OURS | OF_THE_PLACE
        assert set(ours) - extra - OF_THE_PROCESS == set(theirs) - OF_THE_PROCESS
        different = {
            name for name in set(theirs) - FREE - OF_THE_PROCESS if theirs[name] != ours[name]
        }
        assert different == ({"TORCHELASTIC_USE_AGENT_STORE"} if options else set())
        assert extra <= set(ours)


def test_arguments_arrive_unchanged_and_placeholders_are_filled(lab: Lab) -> None:
    script = lab.script("import json, sys; json.dump(sys.argv[1:], open('seen.json', 'w'))")
    words = [*ARGUMENTS, "${local_rank}", "{node_rank}/{world_size}"]
    done = lab("run", "-t", "solo", *TORCHRUN, script, *words)
    assert done.returncode == 0, done.stderr
    assert json.loads((lab.cwd / "seen.json").read_text()) == [*words[:-1], "0/1"]


def test_an_executable_without_python(lab: Lab) -> None:
    done = lab("run", "-t", "solo", *TORCHRUN, "--no-python", "sh", "-c", "echo $RANK; exit 200")
    assert (done.returncode, done.stdout) == (200, "[0 node0] 0\n")
    assert verdict(lab)["kind"] == "exit"


def test_torchruns_own_failure_is_told_in_its_words(lab: Lab) -> None:
    lab.script("raise OSError('this torch is broken')", "broken/torch/__init__.py")
    script = lab.script("")
    done = lab("run", "-t", "solo", *TORCHRUN, "--env", f"PYTHONPATH={lab.cwd}/broken", script)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "lab: error: node0 cannot take part: torchrun ended: OSError: this torch is broken"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--engine", "accelerate"], "spawn or torchrun"),
        (["--min-nodes", "1"], "add --engine torchrun"),
        (["--engine", "torchrun", "--min-nodes", "3"], "a number from 1 to 2"),
        (["--engine", "torchrun", "--min-nodes", "0"], "a number from 1 to 2"),
    ],
)
def test_wrong_options_are_one_line(lab: Lab, options: list[str], words: str) -> None:
    script = lab.script("")
    done = lab("run", "-t", "pair", "--on", "local", *options, script)
    assert done.returncode == 2
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert lab.runs() == []


def test_show_and_logs_know_the_engine(lab: Lab) -> None:
    script = lab.script("print('here')")
    lab("run", "-t", "solo", *TORCHRUN, "--min-nodes", "1", script)
    shown: dict[str, Any] = json.loads(lab("show", "--json").stdout)["job"]
    assert (shown["engine"], shown["min_nodes"]) == ("torchrun", 1)
    assert "engine    torchrun, --min-nodes 1" in lab("show").stdout
    assert lab("logs").stdout == "[0 node0] here\n"


def test_a_function_by_torchrun(lab: Lab) -> None:
    script = lab.script(
        """
import os
from lab import run

def work(base):
    return base + int(os.environ["RANK"]), os.environ["TORCHELASTIC_USE_AGENT_STORE"]

if __name__ == "__main__":
    print(run(work, "pair", on="local", engine="torchrun", args=[10], quiet=True).results)
"""
    )
    done = subprocess.run(
        [sys.executable, script], cwd=lab.cwd, capture_output=True, text=True, check=False
    )
    assert done.stdout == "((10, 'True'), (11, 'True'))\n", done.stderr
