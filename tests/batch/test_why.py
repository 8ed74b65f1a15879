"""Why a job of Slurm hangs or has failed: what is made of its ranks' files."""

import json
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

from lab.batch import inquiry
from lab.batch.files import JobFiles, nodes_of
from lab.batch.why import ask_ranks, judge_failure, review_end, why_stalled
from lab.diagnose.finding import Finding
from lab.errors import LabError
from lab.node.meeting import write_whole
from lab.node.questions import asked, rank_answer
from lab.node.task import NODES
from lab.runs.directory import RunDirectory
from lab.runs.verdict import Failure
from lab.topology import load_topology

TOPOLOGY = "name: pair\non: slurm\nnodes: node[0-1]\nslurm: {time: 30}\n"


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    path = tmp_path / "runs/20260101-pair"
    path.mkdir(parents=True)
    (path / "topology.yaml").write_text(TOPOLOGY)
    return RunDirectory(path)


def write_events(run: RunDirectory, rank: int, *events: dict[str, Any]) -> None:
    folder = run.path / f"node{rank}"
    folder.mkdir(exist_ok=True)
    started = {"type": "started", "pid": 100 + rank, "host": f"host{rank}", "restart": 0}
    started["world"] = {"master": "node0:29500", "ranks": 2}
    lines = [
        json.dumps({"at": float(at), "rank": rank, "node": f"node{rank}", **event})
        for at, event in enumerate((started, *events))
    ]
    (folder / f"rank{rank}.events.jsonl").write_text("\n".join(lines) + "\n")


def probe(line: int) -> dict[str, Any]:
    frame = {"file": "train.py", "line": line, "function": "<module>", "user": True}
    return {
        "time": 1.0,
        "seqs": {},
        "pending": 0,
        "where": f"train.py:{line}",
        "threads": [{"name": "MainThread", "main": True, "frames": [frame]}],
        "groups": [],
        "collectives": [],
    }


PEER = {"port": 5000, "ptrace": None, "peers": {"node1": "refused"}, "master": None}


def answer(
    run: RunDirectory,
    rank: int,
    still_s: float = 0.0,
    *,
    askers: int = 1,
    look_every: float = 0.01,
    moves: Mapping[str, Any] | None = None,
    seen: Collection[int] = (),
) -> None:
    """As a rank's task does, when the questions come: for a pulse, then for all there is.

    `moves`: what its probe has, until it is asked for the last time; `seen`: questions of before.
    """
    process = {"state": "S", "cpu_s": 1.0, "threads": 2, "busy": False}
    # By a clock of its own.
    state = {"at": 1001.0, "rank": rank, "process": process, "source": "probe", "error": None}
    place = {"node": f"node{rank}", "meets": "node0:29500", "tried": PEER}
    pulses = [{"at": 1.0, "process": process, "probe": {"seqs": {}, "where": "train.py:6"}}]
    told = {**state, **place, "probe": probe(7), "pulses": pulses, "last_output": 0.5}
    told["still_s"] = still_s
    seen = set(seen)
    while askers:
        for what in asked(run.path):
            if what["number"] in seen:
                continue
            seen.add(what["number"])
            if what["what"] == "pulse":
                beat = {**state, **place, "still_s": still_s, "probe": {}}
                write_answer(run, what["number"], rank, beat)
            else:
                assert what["master"], "no rank has been seen in a process group"
                askers -= 1
                moved = moves if askers and moves is not None else {}
                now = {**told, "probe": {**probe(7), **moved}}
                write_answer(run, what["number"], rank, now)
        time.sleep(look_every)


def write_answer(run: RunDirectory, number: int, rank: int, told: dict[str, Any]) -> None:
    path = rank_answer(run.path, number, rank)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, told)


def test_ranks_are_asked_through_the_run_directory(run: RunDirectory) -> None:
    for rank in range(2):
        write_events(run, rank)
    ranks = [threading.Thread(target=answer, args=(run, rank)) for rank in range(2)]
    for thread in ranks:
        thread.start()
    told = ask_ranks(run)
    for thread in ranks:
        thread.join()
    evidence = told["evidence"]
    assert evidence["because"] == "asked"
    assert [known["pid"] for known in evidence["ranks"].values()] == [100, 101]
    assert [known["source"] for known in evidence["ranks"].values()] == ["probe", "probe"]
    assert [node["answered"] for node in evidence["nodes"].values()] == [True, True]
    assert evidence["master"] == "node0:29500"
    assert evidence["nodes"]["node0"]["peers"] == {"node1": "refused"}
    assert [pulse["where"] for pulse in evidence["ranks"]["0"]["pulses"]] == [
        "train.py:6",
        "train.py:7",
    ]
    assert json.loads((run.path / "why.json").read_text()) == json.loads(json.dumps(told))
    known = evidence["ranks"]["0"]
    before, last = (pulse["time"] for pulse in known["pulses"])
    assert (last - before, last - known["last_output"]) == (1000.0, 1000.5)
    assert 0 <= evidence["time"] - last < 600, "by the clock of who asks"


def test_who_asks_at_the_same_time_as_another_gets_its_answers_too(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.batch.inquiry.PATIENCE", 600.0)  # nobody is given up
    for rank in range(2):
        write_events(run, rank)
    options = {"askers": 2, "look_every": 0.5}
    told: list[dict[str, Any]] = []
    ranks = [
        threading.Thread(target=answer, args=(run, n), kwargs=options, daemon=True)
        for n in range(2)
    ]
    askers = [
        threading.Thread(target=lambda: told.append(ask_ranks(run)), daemon=True) for _ in range(2)
    ]
    for thread in (*ranks, *askers):
        thread.start()
    for thread in askers:
        thread.join(30)
    assert len(told) == 2, "a question was lost"
    for one in told:
        assert [node["answered"] for node in one["evidence"]["nodes"].values()] == [True, True]
    for thread in ranks:
        thread.join()
    assert [path.name for path in (run.path / "why").iterdir()] == ["ask.json"]


def test_a_job_without_ranks_cannot_be_asked(run: RunDirectory) -> None:
    with pytest.raises(LabError, match="no rank of run 20260101-pair runs now"):
        ask_ranks(run)


def test_a_job_none_of_whose_ranks_answers_is_not_judged(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.batch.inquiry.PATIENCE", 0.2)
    write_events(run, 0)
    with pytest.raises(LabError, match="no rank of run 20260101-pair answers"):
        ask_ranks(run)


def test_one_that_does_not_answer_is_waited_for_once(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = iter((2.0, 600.0))
    hear = inquiry.JobInquiry._hear

    def patiently(*given: Any) -> Any:
        monkeypatch.setattr("lab.batch.inquiry.PATIENCE", next(patience))
        return hear(*given)

    monkeypatch.setattr("lab.batch.inquiry.JobInquiry._hear", patiently)
    for rank in range(2):
        write_events(run, rank)
    told: list[dict[str, Any]] = []
    for job in (lambda: told.append(ask_ranks(run)), lambda: answer(run, 0)):
        threading.Thread(target=job, daemon=True).start()
    give_up = time.monotonic() + 60
    while not told and time.monotonic() < give_up:
        time.sleep(0.1)
    (nodes,) = (one["evidence"]["nodes"] for one in told)
    assert [node["answered"] for node in nodes.values()] == [True, False]


def test_a_rank_that_ended_is_not_waited_for_and_its_node_is_not_silent(run: RunDirectory) -> None:
    write_events(run, 0)
    write_events(run, 1, {"type": "exit", "code": 0, "signal": None})
    rank = threading.Thread(target=answer, args=(run, 0))
    rank.start()
    evidence = ask_ranks(run)["evidence"]
    rank.join()
    assert [node["answered"] for node in evidence["nodes"].values()] == [True, True]


def test_a_rank_that_begins_anew_is_not_waited_for(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lab.batch.inquiry.PATIENCE", 600.0)
    for rank in range(2):
        write_events(run, rank)
    told: list[dict[str, Any]] = []
    asks = threading.Thread(target=lambda: told.append(ask_ranks(run)), daemon=True)
    asks.start()
    while not asked(run.path):
        time.sleep(0.01)
    again = {"type": "started", "pid": 201, "host": "host1", "restart": 0}
    write_events(run, 1, {"type": "exit", "code": 143, "signal": 15}, again)
    before = {one["number"] for one in asked(run.path)}
    for rank, seen in enumerate((set(), before)):
        more = {"seen": seen}
        threading.Thread(target=answer, args=(run, rank), kwargs=more, daemon=True).start()
    asks.join(30)
    assert told, "it was asked before it had begun"
    nodes = told[0]["evidence"]["nodes"].values()
    assert [node["answered"] for node in nodes] == [True, True]


def test_the_last_words_of_ranks_that_raised_are_judged(run: RunDirectory) -> None:
    topology = load_topology(str(run.path / "topology.yaml"))
    failure = Failure(1, "node1", "exception", 1, exception="ValueError", file="train.py", line=5)
    events = [
        {"type": "started", "rank": 0, "node": "node0", "pid": 1},
        {"type": "started", "rank": 1, "node": "node1", "pid": 2},
        {"type": "state", "rank": 1, "node": "node1", "probe": probe(5)},
        {"type": "exit", "rank": 1, "node": "node1", "code": 1, "signal": None},
    ]
    finding = judge_failure(run, topology, events, failure)
    assert (finding.kind, finding.ranks) == ("failed", (1,))
    evidence = json.loads((run.path / "why.json").read_text())["evidence"]
    assert evidence["ranks"]["1"]["threads"][0]["frames"][0]["line"] == 5
    assert evidence["ranks"]["1"]["ended"] == {"code": 1, "signal": None}


def test_a_fault_of_the_judge_does_not_hide_how_the_job_ended(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> Finding:
        raise KeyError("seqs")

    monkeypatch.setattr("lab.runs.evidence.diagnose", broken)
    topology = load_topology(str(run.path / "topology.yaml"))
    finding = judge_failure(run, topology, [], Failure(1, "node1", "exit", 7))
    assert finding.kind == "unknown"
    assert finding.summary == "the evidence could not be judged: KeyError: 'seqs'"
    written = json.loads((run.path / "why.json").read_text())["finding"]
    assert Finding.from_json(written) == finding


def test_what_the_others_did_when_one_had_failed_is_judged_too(run: RunDirectory) -> None:
    topology = load_topology(str(run.path / "topology.yaml"))
    failure = Failure(1, "node1", "exit", 7)
    process = {"state": "S", "cpu_s": 1.0, "threads": 2, "busy": False}
    state = {"rank": 0, "process": process, "source": "probe", "error": None, "probe": probe(7)}
    write_answer(run, 5, 0, {**state, "at": 104.0, "node": "node0", "last_output": 100.5})
    events: list[dict[str, Any]] = [
        {"type": "started", "rank": 0, "node": "node0", "pid": 1},
        {"type": "started", "rank": 1, "node": "node1", "pid": 2},
        {"type": "exit", "rank": 1, "node": "node1", "code": 7, "signal": None},
        {"type": "asked", "rank": 1, "node": "node1", "at": 4.0, "number": 5},
        {"type": "exit", "rank": 0, "node": "node0", "code": 143, "signal": 15},
    ]
    finding = judge_failure(run, topology, events, failure)
    assert (finding.kind, finding.ranks) == ("failed", (1,))
    known = json.loads((run.path / "why.json").read_text())["evidence"]["ranks"]["0"]
    assert known["threads"][0]["frames"][0]["line"] == 7
    assert (known["pulses"][0]["time"], known["last_output"]) == (4.0, 0.5)
    assert known["ended"] is None, "that came later, and was srun"


def test_a_stall_is_judged_in_the_job_by_python_alone(run: RunDirectory) -> None:
    for rank in range(2):
        write_events(run, rank)
    nodes = nodes_of(load_topology(str(run.path / "topology.yaml")))
    write_whole(run.path / NODES, nodes)
    stills = (30.0, 20.0)
    ranks = [threading.Thread(target=answer, args=(run, *one)) for one in enumerate(stills)]
    for thread in ranks:
        thread.start()
    # Without the packages that a controller has.
    code = f"""
import runpy, sys
sys.modules.update(dict.fromkeys(("pydantic", "ruamel", "typer", "docker", "torch")))
sys.argv = ["-m", {str(run.path)!r}, "20"]
runpy.run_module({inquiry.__name__!r}, run_name="__main__")
"""
    argv = [sys.executable, "-P", "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    for thread in ranks:
        thread.join()
    assert done.returncode == 0, done.stderr
    evidence = json.loads((run.path / "why.json").read_text())["evidence"]
    assert (evidence["because"], evidence["stalled_s"]) == ("stall", 20.0)


@pytest.mark.parametrize("moves", [{"joins": True}, {"seqs": {"0": 3}}])
def test_what_moves_while_it_is_asked_is_no_stall(
    run: RunDirectory, moves: Mapping[str, Any]
) -> None:
    for rank in range(2):
        write_events(run, rank)
    more = {"askers": 2, "moves": moves}
    ranks = [
        threading.Thread(target=answer, args=(run, n, 30.0), kwargs=more, daemon=True)
        for n in range(2)
    ]
    for thread in ranks:
        thread.start()
    nodes = nodes_of(load_topology(str(run.path / "topology.yaml")))
    told = inquiry.JobInquiry(run.path, JobFiles(run.path, nodes)).wait_for_stall(20.0)
    assert told["evidence"]["because"] == "stall"
    for thread in ranks:
        thread.join(30)
        assert not thread.is_alive(), "they were to be asked once more"


def test_a_stall_counts_until_the_ranks_go_on() -> None:
    def why(kind: str) -> dict[str, Any]:
        return {"type": "why", "finding": Finding(kind, "error", "").to_json()}  # type: ignore[arg-type]

    ended = why("failed")
    assert why_stalled([why("paused"), {"type": "progress"}]) is None
    again = why_stalled([why("paused"), {"type": "progress"}, why("data-loader")])
    assert again is not None
    assert again.kind == "data-loader"
    stopped = why_stalled([why("paused"), {"type": "stop"}, ended])
    assert stopped is not None
    assert stopped.kind == "paused", "what comes then is lab's own doing"


def test_of_a_job_that_ended_well_it_is_told_who_has_called_more(run: RunDirectory) -> None:
    topology = load_topology(str(run.path / "topology.yaml"))
    group = {"name": "0", "backend": "gloo", "ranks": [0, 1]}
    call = {"group": "0", "op": "all_reduce", "shapes": [[2]], "dtypes": ["float32"], "done": True}
    for counts in ((2, 2), (3, 2)):
        for rank, count in enumerate(counts):
            calls = [{**call, "seq": seq, "site": None} for seq in range(1, count + 1)]
            last = {"time": 1.0, "groups": [group], "collectives": calls}
            end = {"type": "exit", "code": 0, "signal": None}
            write_events(run, rank, {"type": "state", "probe": last}, end)
        files = JobFiles(run.path, nodes_of(topology))
        files.read(None, lambda _: None)
        finding = review_end(run, topology, files.events)
        assert (finding is None) == (len(set(counts)) == 1)
    assert finding is not None
    assert (finding.kind, finding.severity) == ("mismatched-collective", "warning")
    assert json.loads((run.path / "why.json").read_text())["evidence"]["because"] == "end"
