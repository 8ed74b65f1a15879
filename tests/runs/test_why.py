"""Why a run hangs or has failed: real ranks that wait, stop and raise, on local nodes."""

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Lab

STOP = ("--stall", "1s", "--on-stall", "stop")
PAIR = ("run", "-t", "solo", "--slots", "2", "--on", "local")


def kept(lab: Lab, name: str) -> dict[str, Any]:
    found = json.loads((lab.runs()[-1] / name).read_text())
    assert isinstance(found, dict)
    return found


def main_frames(evidence: dict[str, Any], rank: int) -> list[dict[str, Any]]:
    (main,) = [one for one in evidence["ranks"][str(rank)]["threads"] if one["main"]]
    return list(main["frames"])


def wait_for(lab: Lab, pattern: str) -> Path:
    for _ in range(1200):
        for path in lab.cwd.glob(pattern):
            return path
        time.sleep(0.1)
    raise AssertionError(f"no {pattern}")


def test_a_run_without_progress_is_ended_and_the_stopped_rank_is_named(lab: Lab) -> None:
    script = lab.script("""
import os, pathlib, signal, time
stopped = pathlib.Path("stopped")
if os.environ["RANK"] == "1":
    stopped.touch(); os.kill(os.getpid(), signal.SIGSTOP)
while not stopped.exists(): pass
time.sleep(600)
""")
    done = lab(*PAIR, *STOP, script)
    assert done.returncode == 75, done.stderr
    verdict, why = kept(lab, "verdict.json"), kept(lab, "why.json")
    assert (verdict["schema"], verdict["kind"], verdict["ended"]) == (2, "stalled", [0, 1])
    assert verdict["why"] == why["finding"]
    assert (verdict["why"]["kind"], verdict["why"]["ranks"]) == ("paused", [1])
    evidence = why["evidence"]
    assert (evidence["because"], evidence["world_size"]) == ("stall", 2)
    assert evidence["stalled_s"] >= 1
    stopped, waiting = evidence["ranks"]["1"], evidence["ranks"]["0"]
    assert (stopped["process"]["state"], stopped["source"]) == ("T", "py-spy")
    assert waiting["source"] == "probe"
    assert main_frames(evidence, 1)[0]["line"] == 5
    assert main_frames(evidence, 0)[0]["line"] == 7
    assert done.stderr.count("lab: paused:") == 1  # said when it is found, and not again at the end


def test_the_stacks_are_printed_after_the_end_too(lab: Lab) -> None:
    script = lab.script("""
import time
def sleep():
    time.sleep(600)
try:
    int("x")
finally:
    sleep()
""")
    assert lab(*PAIR, *STOP, script).returncode == 75
    done = lab("why", "--stacks")
    assert done.returncode == 0, done.stderr
    raised = "raised ValueError: invalid literal for int() with base 10: 'x' (script.py:6)"
    frames = "    script.py:8 in <module>\n    script.py:4 in sleep\n"
    assert done.stdout.count(f"{frames}    it {raised}, and handles that\n") == 2
    assert "rank 1 on node0 (process " in done.stdout
    finding = json.loads(lab("why", "--json").stdout)["finding"]
    assert finding["kind"] == "unknown"
    assert finding["evidence"][-1] == f"besides, ranks 0, 1 (node0) {raised}"


def test_a_stall_is_only_reported_unless_the_run_is_to_be_stopped(lab: Lab) -> None:
    script = lab.script("""
import pathlib, time
while not pathlib.Path("go").exists():
    time.sleep(0.05)
""")
    process = lab.start(*PAIR, "--stall", "1s", script)
    wait_for(lab, "runs/*/why.json")
    (lab.cwd / "go").touch()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "no rank has made progress for" in err
    assert kept(lab, "verdict.json")["kind"] == "ok"
    assert kept(lab, "verdict.json")["why"] is None
    events = (lab.runs()[-1] / "events.jsonl").read_text().splitlines()
    whys = [event for event in map(json.loads, events) if event["type"] == "why"]
    assert [why["because"] for why in whys] == ["stall"]


@pytest.mark.parametrize(
    "body",
    [
        "while time.monotonic() < end: sum(range(100))",
        "while time.monotonic() < end: print('still here'); time.sleep(0.1)",
        "subprocess.run([sys.executable, '-c', 'for _ in range(10**8): pass'])",
    ],
    ids=["computes", "writes", "waits for a child that computes"],
)
def test_a_run_that_does_something_is_no_stall(lab: Lab, body: str) -> None:
    script = lab.script(f"import subprocess, sys, time\nend = time.monotonic() + 4\n{body}\n")
    done = lab(*PAIR, *STOP, script)
    assert done.returncode == 0, done.stderr


def test_a_run_that_waits_for_its_user_is_no_stall(lab: Lab) -> None:
    script = lab.script("input(); print('thanks')")
    argv = ("run", "-t", "solo", "--on", "local", *STOP, script)
    process = lab.start(*argv, stdin=subprocess.PIPE)
    wait_for(lab, "runs/*/events.jsonl")
    time.sleep(4)  # longer than it may be still
    out, _ = process.communicate("\n", timeout=60)
    assert (process.returncode, out) == (0, "[0 node0] thanks\n")


WAITS = """
import pathlib, sys, time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(4, 64))
if rank == 1:
    pathlib.Path("waits").touch()
    while not pathlib.Path("go").exists():
        time.sleep(0.05)
    raise ValueError("inductor" if "torch._inductor" in sys.modules else "as it should")
dist.all_reduce(torch.ones(8))
"""


def test_whoever_asks_and_whoever_fails_is_told_who_waits_where(lab: Lab) -> None:
    process = lab.start(*PAIR, lab.script(WAITS))
    wait_for(lab, "waits")
    asked = lab("why", "--json")
    assert asked.returncode == 0, asked.stderr
    told = json.loads(asked.stdout)
    assert told["state"] == "running"
    evidence = told["evidence"]
    assert evidence["because"] == "asked"
    waiting, other = evidence["ranks"]["0"], evidence["ranks"]["1"]
    assert main_frames(evidence, 1)[0]["line"] == 10
    assert [one["ranks"] for one in other["groups"]] == [[0, 1]]
    (group,) = waiting["groups"]
    assert (group["last_enqueued"], group["last_completed"]) == (2, 1)
    last = waiting["collectives"][-1]
    assert (last["op"], last["shapes"], last["dtypes"]) == ("all_reduce", [[8]], ["float32"])
    assert (last["done"], last["site"]["line"]) == (False, 12)
    assert told["finding"]["kind"]  # which one depends on how long it waits by now
    assert process.poll() is None  # nothing has happened to it
    assert list((lab.runs()[-1] / "why").glob("ask.json")) == []

    (lab.cwd / "go").touch()
    process.communicate(timeout=60)
    verdict = kept(lab, "verdict.json")
    assert (verdict["kind"], verdict["first"]["message"]) == ("exception", "as it should")
    assert (verdict["why"]["kind"], verdict["why"]["ranks"]) == ("failed", [1])
    evidence = kept(lab, "why.json")["evidence"]
    assert evidence["because"] == "failure"
    assert evidence["failure"]["exception"] == "ValueError"
    assert main_frames(evidence, 1)[0]["line"] == 11
    (innocent,) = verdict["why"]["innocent"]
    assert (innocent["ranks"], innocent["line"]) == ([0], 12)


def test_a_run_of_which_nothing_is_known_says_how_it_ended(lab: Lab) -> None:
    assert lab(*PAIR, lab.script("")).returncode == 0
    done = lab("why")
    assert (done.returncode, done.stdout) == (0, "")
    assert "ended well" in done.stderr
    assert json.loads(lab("why", "--json").stdout)["finding"] is None


def test_what_the_audit_has_found_is_told_again(lab: Lab) -> None:
    script = lab.script("""
import torch
torch.save(torch.ones(4), "model.pt")
""")
    done = lab(*PAIR, "--audit", script, timeout=120)
    assert done.returncode == 66, done.stderr
    told = lab("why")
    assert told.returncode == 0
    assert told.stdout.startswith("lab: same-file: ranks 0, 1 write the same file, model.pt")
    assert "the audit found 1 error" in told.stderr


def test_what_to_do_on_a_stall_is_one_of_two_things(lab: Lab) -> None:
    done = lab(*PAIR, "--on-stall", "panic", lab.script(""))
    assert done.returncode == 2
    assert "--on-stall panic: it is report or stop" in done.stderr


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("how", ["env://", "tcp://"])
def test_who_looks_for_the_master_elsewhere_than_it_is(lab: Lab, how: str, nodes: int) -> None:
    """The launcher's own is not what they look for."""
    script = lab.script(f"""
import os, torch.distributed as dist
rank, port = int(os.environ["RANK"]), int(os.environ["MASTER_PORT"])
os.environ["MASTER_PORT"] = str(port + rank)
place = f"{{os.environ['MASTER_ADDR']}}:{{port + rank}}"
method = "env://" if {how == "env://"} else f"tcp://{{place}}"
dist.init_process_group("gloo", method, rank=rank, world_size=2)
""")
    size = ("--nodes", str(nodes), "--slots", str(2 // nodes))
    done = lab("run", "-t", "pair", "--on", "local", *size, *STOP, script)
    assert done.returncode == 75, done.stderr
    why = kept(lab, "verdict.json")["why"]
    assert (why["kind"], why["ranks"], why["line"]) == ("rendezvous", [1], 7)
    address, _, port = kept(lab, "why.json")["evidence"]["master"].rpartition(":")
    expected = f"cannot reach the master {address}:{int(port) + 1}: refused, at {address}"
    assert why["summary"].endswith(expected)


def test_under_torchrun_a_script_that_says_where_to_meet_meets_nobody(lab: Lab) -> None:
    script = lab.script("""
import os, torch.distributed as dist
os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1)
dist.init_process_group("gloo")
""")
    done = lab(
        *("run", "-t", "pair", "--on", "local", "--slots", "1"),
        *("--engine", "torchrun", *STOP, script),
    )
    assert done.returncode == 75, done.stderr
    why = kept(lab, "verdict.json")["why"]
    assert (why["kind"], why["ranks"], why["line"]) == ("rendezvous", [0, 1], 4)
    assert "where nobody listens: under torchrun" in why["summary"]
