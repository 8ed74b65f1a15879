"""The verdict on what was gathered from real runs: all that the user reads, word for word.

    LAB_REGENERATE=1 pytest tests/diagnose/test_recorded.py -n0 [-k NAME]

runs the scripts of `hangs.py` and records anew; LAB_REGENERATE=verdicts only judges anew. Then read
the difference.
"""

import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.cli.findings import lines_of
from lab.diagnose.finding import Finding
from lab.diagnose.why import diagnose
from tests.conftest import Lab
from tests.diagnose.hangs import HANGS

RECORDED = Path(__file__).parent / "recorded"
REGENERATE = os.environ.get("LAB_REGENERATE")
FRAMES = 16
"""How much of a stack is worth to be kept."""
LIBRARY = re.compile(r"^/.*/(?=site-packages/|python3\.\d+/)")
"""Where libraries are on the machine that recorded."""


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize("name", HANGS)
def test_verdict(name: str, lab: Lab) -> None:
    evidence = RECORDED / f"{name}.json"
    verdict = RECORDED / f"{name}.txt"
    if REGENERATE == "1":
        evidence.write_text(json.dumps(_record(name, lab)) + "\n")
    told = _told(diagnose(json.loads(evidence.read_text())))
    if REGENERATE:
        verdict.write_text(told)
    assert told == verdict.read_text(), "LAB_REGENERATE=1 writes it anew"


def _told(finding: Finding) -> str:
    """The data that programs read, and the lines that people do."""
    where = f"{finding.file}:{finding.line} in {finding.function}"
    data = f"ranks {[*finding.ranks]} on {[*finding.nodes]}, {where}"
    return "\n".join([data, *lines_of(finding), ""])


def _record(name: str, lab: Lab) -> dict[str, Any]:
    hang = HANGS[name]
    script = lab.script(hang.script, f"{name.replace('-', '_')}.py")
    size = ("--nodes", str(hang.nodes), "--slots", str(hang.slots))
    stall = ("--stall", "5", "--on-stall", "stop")
    ended = lab("run", "--on", "local", *size, *stall, script)
    (run,) = lab.runs()
    document = run / "why.json"
    assert document.is_file(), ended.stderr
    found: dict[str, Any] = json.loads(document.read_text())["evidence"]
    return _trimmed(found)


def _trimmed(evidence: dict[str, Any]) -> dict[str, Any]:
    """Without what no judge looks at, and no path of this machine."""
    for rank in evidence["ranks"].values():
        rank["threads"] = [thread for thread in rank["threads"] if thread["main"]]
        for thread in rank["threads"]:
            thread["frames"] = thread["frames"][:FRAMES]
            for frame in thread["frames"]:
                frame["file"] = LIBRARY.sub("/", frame["file"])
        rank["pulses"] = rank["pulses"][-3:]
    if evidence["failure"]:
        evidence["failure"]["traceback"] = None
        said = evidence["failure"]["last_lines"]
        evidence["failure"]["last_lines"] = [line for line in said if 'File "' not in line]
    return evidence
