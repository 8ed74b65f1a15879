"""A rank that waits, as a scheduler started it: its task has the ranks judged, once."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab.node.task import NODES
from tests.node.test_task import NAMES, PLACE, events

JUDGE = """
import json, sys
with open(sys.argv[1] + "/why.json", "w") as file:
    finding = {{"kind": "{kind}", "after": float(sys.argv[2])}}
    json.dump({{"finding": finding, "evidence": {{"stalled_s": 1.5}}}}, file)
"""


def run_task(folder: Path, script: str, *, kind: str = "busy-alone", stop: bool = False) -> int:
    """Until the rank has ended; the exit code."""
    run = folder / "runs/20260101-quad"
    run.mkdir(parents=True)
    stall = {"after": 1, "stop": stop, "judge": ["-c", JUDGE.format(kind=kind)]}
    (run / NODES).write_text(json.dumps({**NAMES, "stall": stall}))
    (folder / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "lab.node.task", "script.py"],
        cwd=folder,
        env={**os.environ, **PLACE, "LAB_RUN_DIR": str(run)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert list(run.glob("why/stall*")) == ([run / "why/stall-0-0"] if stop else [])
    return done.returncode


def told(folder: Path) -> list[dict[str, Any]]:
    return [event for event in events(folder) if event["type"] not in ("started", "exit")]


WAITS = """
import pathlib, time
def told():
    return [p for p in pathlib.Path("runs").rglob("*.events.jsonl") if '"why"' in p.read_text()]
while not told():
    time.sleep(0.1)
"""
"""Uses next to no processor time until it has been told of."""


def test_a_rank_that_waits_is_told_of_until_it_goes_on(tmp_path: Path) -> None:
    assert run_task(tmp_path, f"{WAITS}print('on', flush=True)\ntime.sleep(0.5)") == 0
    why, progress = told(tmp_path)
    assert (why["type"], why["because"], why["stalled_s"]) == ("why", "stall", 1.5)
    assert why["finding"] == {"kind": "busy-alone", "after": 1.0}
    assert progress["type"] == "progress"


def test_a_rank_that_waits_in_vain_is_ended_if_that_is_wanted(tmp_path: Path) -> None:
    script = "import signal, time\nsignal.signal(signal.SIGTERM, lambda *_: None)\ntime.sleep(600)"
    assert run_task(tmp_path, script, stop=True) == 137
    assert [event["type"] for event in told(tmp_path)] == ["why", "stop"]


def test_one_that_ends_well_when_it_is_told_to_has_not_ended_well(tmp_path: Path) -> None:
    """Else srun and torchrun, which end the others for a failure alone, would let them wait on."""
    script = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
time.sleep(600)
"""
    assert run_task(tmp_path, script, stop=True) == 143
    assert [event["type"] for event in told(tmp_path)] == ["why", "stop"]
    assert (events(tmp_path)[-1]["type"], events(tmp_path)[-1]["code"]) == ("exit", 143)


def test_one_that_is_only_slow_is_not(tmp_path: Path) -> None:
    assert run_task(tmp_path, WAITS, kind="slow") == 0
    assert told(tmp_path)[0]["finding"]["kind"] == "slow"


def test_only_one_has_the_ranks_asked(tmp_path: Path) -> None:
    (tmp_path / "runs/20260101-quad/why/stall-0-0").mkdir(parents=True)
    run = tmp_path / "runs/20260101-quad"
    stall = {"after": 0.5, "stop": True, "judge": ["-c", JUDGE.format(kind="paused")]}
    (run / NODES).write_text(json.dumps({**NAMES, "stall": stall}))
    (tmp_path / "script.py").write_text("import time\ntime.sleep(4)")
    done = subprocess.run(
        [sys.executable, "-P", "-m", "lab.node.task", "script.py"],
        cwd=tmp_path,
        env={**os.environ, **PLACE, "LAB_RUN_DIR": str(run)},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0
    assert told(tmp_path) == []
