"""Which rank is blamed, with the errors that torch and Python really raise."""

import json
import signal

import pytest

from tests.conftest import Lab
from tests.runs.test_kills import Run
from tests.runs.test_local_runs import verdict

PAIR = """
import os, socket, sys, time
import torch
import torch.distributed as dist

class TrainingFailed(Exception):
    pass

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))  # all are connected

def step():
    dist.all_reduce(torch.ones(1))

def on_rank_0():
{on_rank_0}

def on_rank_1():
{on_rank_1}

on_rank_0() if dist.get_rank() == 0 else on_rank_1()
"""
REFUSED = "    socket.create_connection(('127.0.0.1', 1))"
LATE = """\
    try:
        raise ValueError("real cause")
    finally:
        dist.destroy_process_group()
        time.sleep(2.5)"""
WRAPS = """\
    try:
        step()
    except RuntimeError as error:
        raise TrainingFailed("step failed") from error"""
HIDES = """\
    try:
        step()
    except RuntimeError:
        raise TrainingFailed("see the log") from None"""
EXITS = """\
    try:
        step()
    except RuntimeError as error:
        print(error)
        sys.exit(5)"""
CRASHES = """\
    import ctypes
    ctypes.string_at(0)"""
FAILS_AFTERWARDS = """\
    try:
        step()
    finally:
        {}["loss"]"""


@pytest.mark.parametrize(
    ("victim", "cause", "kind"),
    [
        (WRAPS, REFUSED, "ConnectionRefusedError"),
        (HIDES, REFUSED, "ConnectionRefusedError"),
        (EXITS, REFUSED, "ConnectionRefusedError"),
        (FAILS_AFTERWARDS, LATE, "ValueError"),
    ],
)
def test_the_cause_is_blamed(lab: Lab, victim: str, cause: str, kind: str) -> None:
    script = lab.script(PAIR.format(on_rank_0=victim, on_rank_1=cause))
    done = lab("run", "-t", "pair", "--on", "local", script)
    told = verdict(lab)
    assert (told["first"]["rank"], told["first"]["exception"]) == (1, kind), done.stderr
    assert done.returncode == 1
    assert told["victims"] in ([0], [])  # the rank that waited may have been ended before it knew
    assert told["hint"] is None


LOADER = """
import os
import data
from torch.utils.data import DataLoader
workers = int(os.environ["RANK"]) + 1
for batch in DataLoader(data.Samples(), batch_size=2, num_workers=workers):
    pass
"""
SAMPLES = """
import os
class Samples:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        if os.environ["RANK"] == "1":
            raise ValueError(f"sample {index} is no number")
        return index
"""


def test_of_a_loaders_worker_the_line_is_told_that_raised(lab: Lab) -> None:
    lab.script(SAMPLES, "data.py")
    done = lab("run", "-t", "pair", "--on", "local", lab.script(LOADER))
    first = verdict(lab)["first"]
    assert (first["rank"], first["exception"]) == (1, "ValueError"), done.stderr
    assert (first["file"], first["line"]) == ("data.py", 8)
    assert first["message"] == "sample 0 is no number"
    assert "script.py" in first["traceback"]
    end = done.stderr.splitlines()[-1]
    assert end == (
        "lab: rank 1 on node1: ValueError: sample 0 is no number (data.py:8) (exit code 1)"
    )


def test_who_left_early_is_named(lab: Lab) -> None:
    script = lab.script(PAIR.format(on_rank_0="    step()", on_rank_1="    os._exit(0)"))
    done = lab("run", "-t", "pair", "--on", "local", script)
    told = verdict(lab)
    assert (done.returncode, told["first"]["rank"]) == (1, 0)
    assert (told["why"]["kind"], told["why"]["ranks"], told["hint"]) == ("ended-early", [1], None)
    assert told["summary"].endswith("rank 0 failed as a consequence")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("lab: rank 1 (node1, local 0) has ended (exit code 0)")
    assert last.endswith("; rank 0 failed as a consequence (exit code 1)")


@pytest.mark.parametrize("victim", [HIDES, EXITS])
def test_who_left_early_is_named_whatever_the_others_make_of_it(lab: Lab, victim: str) -> None:
    ends = "    return"
    lab(
        "run",
        "-t",
        "pair",
        "--on",
        "local",
        lab.script(PAIR.format(on_rank_0=victim, on_rank_1=ends)),
    )
    why = verdict(lab)["why"]
    assert (why["kind"], why["ranks"]) == ("ended-early", [1])
    assert why["innocent"][0]["ranks"] == [0]


@pytest.mark.parametrize("end", ["pass", "dist.destroy_process_group()"])
def test_an_evaluation_by_rank_0_alone_is_one_call_too_many_though_all_others_are_over(
    lab: Lab, end: str
) -> None:
    script = lab.script(f"""
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
model = DDP(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)))
for epoch in range(2):
    for step in range(3):
        model(torch.randn(8, 4)).sum().backward()
    if dist.get_rank() == 0:
        with torch.no_grad():
            model(torch.randn(8, 4))  # line 14
{end}
""")
    lab("run", "-t", "pair", "--on", "local", script)
    why = verdict(lab)["why"]
    assert (why["kind"], why["ranks"], why["line"]) == ("extra-collective", [0], 14)
    assert "went with broadcast [16] float32 in forward() at script.py:11" in why["evidence"][1]


def test_a_call_too_many_is_told_though_all_ranks_end_well(lab: Lab) -> None:
    script = lab.script("""
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(4):
    dist.all_reduce(torch.ones(2))
if dist.get_rank() == 0:
    dist.all_reduce(torch.ones(2), async_op=True)  # nobody waits for it
""")
    done = lab("run", "-t", "pair", "--on", "local", script)
    told = verdict(lab)
    assert (done.returncode, told["kind"]) == (0, "ok")
    why = told["why"]
    assert (why["kind"], why["ranks"], why["severity"]) == (
        "mismatched-collective",
        [0, 1],
        "warning",
    )
    assert "5 on rank 0, 4 on rank 1" in why["evidence"][-1]
    assert "lab: warning: mismatched-collective: rank 1 called 4 collectives" in done.stderr
    assert "2 ranks ended well" in done.stderr.splitlines()[-1]
    assert lab("why").stdout.startswith("lab: warning: mismatched-collective")


def test_where_a_fatal_signal_met_a_rank_is_told(lab: Lab) -> None:
    script = lab.script(PAIR.format(on_rank_0="    step()", on_rank_1=CRASHES))
    done = lab("run", "-t", "pair", "--on", "local", script)
    why = verdict(lab)["why"]
    line = 1 + (lab.cwd / script).read_text().splitlines().index("    ctypes.string_at(0)")
    assert (why["kind"], why["ranks"], why["line"]) == ("failed", [1], line)
    place = f"script.py:{line}"
    assert any("lab: failed: rank 1" in said and place in said for said in done.stderr.splitlines())


def test_a_world_without_a_place_for_a_rank_is_told_in_words(lab: Lab) -> None:
    script = lab.script("""
import os, time
import torch.distributed as dist
dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=1)
time.sleep(100)
""")
    done = lab("run", "-t", "pair", "--on", "local", script)
    assert (done.returncode, verdict(lab)["first"]["rank"]) == (1, 1)
    assert "rank 1 has joined a world of 1, which has no place for it" in done.stderr


def test_a_cause_that_is_too_slow_to_be_told_is_not_made_up(lab: Lab) -> None:
    never = LATE.replace("2.5", "1000")
    script = lab.script(PAIR.format(on_rank_0="    step()", on_rank_1=never))
    done = lab("run", "-t", "pair", "--on", "local", script)
    told = verdict(lab)
    assert (told["first"]["rank"], told["ended"]) == (0, [1])
    # What it handles meanwhile is known all the same.
    assert (told["why"]["kind"], told["why"]["ranks"]) == ("failed", [1])
    assert (told["why"]["file"], told["why"]["line"]) == ("script.py", 20)
    assert "lab: failed: rank 1 (node1, local 0) raised ValueError: real cause" in done.stderr


def test_the_chain_is_in_the_verdict(lab: Lab) -> None:
    script = lab.script("try:\n    {}['a']\nexcept KeyError:\n    raise SystemExit(3)")
    lab("run", "-t", "solo", "--on", "local", script)
    assert verdict(lab)["first"]["chain"] == [
        {"kind": "SystemExit", "message": "3", "file": "script.py", "line": 4, "how": None},
        {"kind": "KeyError", "message": "'a'", "file": "script.py", "line": 2, "how": "context"},
    ]


def test_an_agent_that_was_killed_is_said_to_have_been(lab: Lab) -> None:
    run = Run(lab, "local")
    run.wait_for_ranks()
    run.kill("node1", dict(run.pids("hello"))["node1"])
    _, err = run.controller.communicate(timeout=60)
    assert "rank 1 on node1: its agent was ended by SIGKILL" in err
    assert verdict(lab)["kind"] == "node-lost"


SAVES = """
import os, signal, sys, time
def save(*_):
    time.sleep(2)
    open("saved", "w").close()
    sys.exit(0)
if os.environ["RANK"] == "0":
    signal.signal(signal.SIGTERM, save)
    open("ready", "w").close()
    time.sleep(1000)
while not os.path.exists("ready"):
    time.sleep(0.02)
sys.exit(3)
"""


@pytest.mark.parametrize(("options", "saved"), [((), False), (("--grace", "20"), True)])
def test_a_grace_that_is_asked_for_holds_after_a_failure_too(
    lab: Lab, options: tuple[str, ...], saved: bool
) -> None:
    done = lab("run", "-t", "pair", "--on", "local", *options, lab.script(SAVES))
    assert done.returncode == 3
    assert (lab.cwd / "saved").exists() == saved
    events = (lab.runs()[0] / "events.jsonl").read_text().splitlines()
    (stop,) = (event for event in map(json.loads, events) if event["type"] == "stop")
    assert stop["grace"] == (20 if saved else 1)


def test_ctrl_c_has_its_own_default(lab: Lab) -> None:
    run = Run(lab, "local")
    run.wait_for_ranks()
    run.controller.send_signal(signal.SIGINT)
    _, err = run.controller.communicate(timeout=60)
    assert "ending the ranks, which have 30 s" in err
