"""An audited job of Slurm: nobody drives it, so what its ranks noted is judged afterwards."""

from pathlib import Path
from typing import Any

from lab.batch.heard import Heard
from lab.runs.directory import RunDirectory
from lab.runs.job import Job
from lab.runs.verdict import Verdict
from lab.topology import load_topology

FINE = Verdict("ok", 0, "2 ranks ended well")


class Listener:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def log(self, node: str, rank: int, stream: str, text: str) -> None:
        pass

    def event(self, message: dict[str, Any]) -> None:
        self.events.append(message)


def _heard(tmp_path: Path) -> tuple[Heard, Listener]:
    topology = load_topology(None, nodes="2", on="local")
    directory = RunDirectory.create(topology, Job(command=("train.py",), cwd=tmp_path))
    listener = Listener()
    return Heard(directory, topology, [listener]), listener


def _begin(heard: Heard, restart: int) -> None:
    for rank in (0, 1):
        started = {"type": "started", "rank": rank, "node": f"node{rank}", "restart": restart}
        heard.event({**started, "at": 1.0})


def _note_twice_reduced(heard: Heard) -> None:
    site = {"file": "train.py", "line": 9, "function": None}
    record = {"check": "again", "step": 1, "count": 1, "factor": 2.0, "optimizer": 0, **site}
    for rank in (0, 1):
        heard.event({"type": "audit", "rank": rank, "node": f"node{rank}", "record": record})


def test_what_is_found_is_said_and_is_in_the_verdict(tmp_path: Path) -> None:
    heard, listener = _heard(tmp_path)
    _begin(heard, 0)
    _note_twice_reduced(heard)
    verdict = heard.auditing.close(FINE)
    heard.close()
    (said,) = [event["finding"] for event in listener.events if event["type"] == "finding"]
    (finding,) = verdict.findings
    assert said == finding.to_json()
    assert (finding.kind, finding.ranks) == ("gradients-reduced-twice", (0, 1))
    assert finding.nodes == ("node0", "node1")
    assert (verdict.kind, verdict.exit_code) == ("audit", 66)
    assert not any(event["type"] == "audit" for event in listener.events)


def test_a_job_that_was_queued_anew_begins_with_nothing_found(tmp_path: Path) -> None:
    heard, _ = _heard(tmp_path)
    _begin(heard, 0)
    _note_twice_reduced(heard)
    _begin(heard, 1)
    assert heard.auditing.close(FINE) == FINE
    heard.close()


def test_a_failure_stays_the_verdict(tmp_path: Path) -> None:
    heard, _ = _heard(tmp_path)
    _begin(heard, 0)
    _note_twice_reduced(heard)
    verdict = heard.auditing.close(Verdict("exit", 3, "rank 1 exited with code 3"))
    heard.close()
    assert (verdict.kind, verdict.exit_code) == ("exit", 3)
    assert [finding.kind for finding in verdict.findings] == ["gradients-reduced-twice"]


def test_an_audit_that_finds_nothing_says_how_much_it_saw(tmp_path: Path) -> None:
    heard, _ = _heard(tmp_path)
    _begin(heard, 0)
    record = {"check": "pace", "step": 0}
    heard.event({"type": "audit", "rank": 0, "node": "node0", "record": record})
    said = heard.auditing.close(FINE).summary
    heard.close()
    assert said == "2 ranks ended well, and the audit saw no step of an optimizer"
