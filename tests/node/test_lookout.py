"""A rank that waits, as a scheduler started it: its task has the ranks judged, once."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lab.node.lookout import Lookout
from lab.node.task import NODES
from tests.node.test_task import NAMES, PLACE, events

JUDGE = """
import json, sys
with open(sys.argv[1] + "/why.json", "w") as file:
    finding = {{"kind": "{kind}", "after": float(sys.argv[2])}}
    nodes = {{"a": {{"answered": True}}, "b": {{"answered": {answered}}}}}
    json.dump({{"finding": finding, "evidence": {{"stalled_s": 1.5, "nodes": nodes}}}}, file)
"""


def run_task(
    folder: Path,
    script: str,
    *,
    kind: str = "busy-alone",
    stop: bool = False,
    claimed: bool = False,
    answered: bool = True,
    env: Mapping[str, str] = PLACE,
) -> int:
    """Until the rank has ended; the exit code.

    `claimed`: by another rank's task; `answered`: whether all hosts were heard of.
    """
    run = folder / "runs/20260101-quad"
    claim = run / "why/stall-0-0"
    (claim if claimed else run).mkdir(parents=True)
    stall = {"after": 1, "stop": stop, "judge": ["-c", JUDGE.format(kind=kind, answered=answered)]}
    (run / NODES).write_text(json.dumps({**NAMES, "stall": stall}))
    (folder / "script.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "lab.node.task", "script.py"],
        cwd=folder,
        env={**os.environ, **env, "LAB_RUN_DIR": str(run)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert list(run.glob("why/stall*")) == ([claim] if stop or claimed else [])
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


@pytest.mark.parametrize("answered", [True, False])
def test_a_job_with_hosts_that_do_not_answer_is_ended_as_a_whole(
    tmp_path: Path, answered: bool
) -> None:
    """srun would wait for them."""
    scancel = tmp_path / "bin/scancel"
    scancel.parent.mkdir()
    scancel.write_text(f"#!/bin/sh\necho $* >{tmp_path}/cancelled\n")
    scancel.chmod(0o755)
    path = f"{scancel.parent}:{os.environ['PATH']}"
    env = {**PLACE, "SLURM_JOB_ID": "17", "PATH": path}
    script = "import time\ntime.sleep(600)"
    assert run_task(tmp_path, script, stop=True, answered=answered, env=env) == 143
    assert (tmp_path / "cancelled").exists() != answered
    if not answered:
        assert (tmp_path / "cancelled").read_text() == "17\n"


def test_one_that_is_only_slow_is_not(tmp_path: Path) -> None:
    assert run_task(tmp_path, WAITS, kind="slow") == 0
    assert told(tmp_path)[0]["finding"]["kind"] == "slow"


def test_only_one_has_the_ranks_asked(tmp_path: Path) -> None:
    assert run_task(tmp_path, "import time\ntime.sleep(4)", stop=True, claimed=True) == 0
    assert told(tmp_path) == []


class Played:
    """A lookout whose rank waits, on a clock that is set."""

    AFTER = 60.0

    def __init__(self, run: Path, patch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.tries = 0  # to be the one who has them asked
        self.claim = run / "why/stall-0-0"
        self.starts: list[object] = []
        self.fails = False
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        patch.setattr("lab.node.lookout.time", clock)
        patch.setattr("lab.node.lookout.subprocess", SimpleNamespace(Popen=self.popen, DEVNULL=0))
        mkdir = Path.mkdir

        def count(path: Path, *given: Any, **more: Any) -> None:
            self.tries += path == self.claim
            mkdir(path, *given, **more)

        patch.setattr(Path, "mkdir", count)
        wanted = {"after": self.AFTER, "stop": False, "judge": []}
        self.lookout = Lookout(run, {"RANK": "3"}, wanted, lambda *_, **__: None)

    def popen(self, *given: object, **_: object) -> SimpleNamespace:
        self.starts.append(given)
        if self.fails:
            raise BlockingIOError
        return SimpleNamespace(pid=0)

    def wait(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.now += 1.0
            if self.lookout.is_due():
                process = {"cpu_s": 1.0, "busy": False}
                self.lookout.on_pulse({"process": process, "probe": {"seqs": {}, "pending": 1}})
            self.lookout.step()


def test_who_waits_for_hours_tries_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(tmp_path, monkeypatch)
    played.claim.mkdir(parents=True)
    played.wait(3600)
    assert 3600 / Played.AFTER <= played.tries <= 2 * 3600 / Played.AFTER + 10
    assert played.starts == []
    played.claim.rmdir()  # who had it has ended
    played.wait(Played.AFTER)
    assert len(played.starts) == 1


def test_who_cannot_start_the_judge_leaves_it_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = Played(tmp_path, monkeypatch)
    played.fails = True
    played.wait(2 * Played.AFTER - 10)
    assert len(played.starts) == 1
    assert not played.claim.exists()
    played.wait(Played.AFTER)
    assert len(played.starts) == 2, "and tries again, if it lasts"
