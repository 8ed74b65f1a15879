"""Why a job of Slurm hangs or has failed, from what its ranks have left in the run directory.

Nobody drives the job: each rank's `lab.node.task` looks for a question there and answers beside it.
"""

import time
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from lab.batch.record import Record as Files
from lab.diagnose.finding import Finding
from lab.diagnose.why import diagnose
from lab.errors import LabError
from lab.node.protocol import Message
from lab.node.questions import rank_answer
from lab.runs.directory import RunDirectory
from lab.runs.evidence import SCHEMA, Record
from lab.runs.questions import Desk, ask
from lab.runs.verdict import Failure
from lab.topology import Topology, load_topology

PATIENCE = 8.0
"""Seconds for the ranks' answers: they look once a second, on a file system that may lag."""
POLL = 0.1


def ask_ranks(run: RunDirectory) -> dict[str, Any]:
    """What why.json holds: asked of all ranks that run now, and written down.

    Raises:
        LabError: none has begun, or none answers.
    """
    topology = load_topology(str(run.path / "topology.yaml"))
    files = Files(run.path, topology)
    files.read(lambda *_: None, lambda _: None)
    awaited = files.silent
    if not awaited:
        raise LabError(f"no rank of run {run.id} runs now; lab ps says where the job is")
    number, asked = ask(run), time.time()
    states: dict[int, Message] = {}
    give_up = time.monotonic() + PATIENCE
    while awaited - states.keys() and time.monotonic() < give_up:
        time.sleep(POLL)
        for rank in awaited - states.keys():
            path = rank_answer(run.path, number, rank)
            state = run.read_json(str(path.relative_to(run.path)))
            if isinstance(state, dict):
                states[rank] = state
        files.read(lambda *_: None, lambda _: None)
        awaited &= files.silent  # nobody waits for who has ended meanwhile
    if not states:
        raise LabError(
            f"no rank of run {run.id} answers in {PATIENCE:g} s: its hosts may be paused or cut "
            "off from the run directory; lab ps says where the job is"
            if awaited
            else f"the ranks of run {run.id} have ended meanwhile: lab show {run.id}"
        )
    record = _record(topology, files.events)
    for rank, state in states.items():
        record.ranks[rank].beat(state, asked)
        record.ranks[rank].state = state
    for name, node in record.nodes.items():
        own = {rank for rank, known in record.ranks.items() if known.node == name}
        node.answered = not own & awaited or bool(own & states.keys())
    return _settled(run, record.evidence("asked", None, None))


def judge_failure(
    run: RunDirectory, topology: Topology, events: Iterable[Message], failure: Failure
) -> Finding:
    """Why a job has failed, by the last words of its ranks; written down, too."""
    evidence = _record(topology, events).evidence("failure", None, asdict(failure))
    return Finding.from_json(_settled(run, evidence)["finding"])


def _record(topology: Topology, events: Iterable[Message]) -> Record:
    nodes = [node.name for node in topology.nodes]
    record = Record({rank.rank: rank.node.name for rank in topology.ranks()}, nodes)
    for message in events:
        record.on_message(message)
    return record


def _settled(run: RunDirectory, evidence: dict[str, Any]) -> dict[str, Any]:
    finding = diagnose(evidence).to_json()
    answer = {"schema": SCHEMA, "finding": finding, "evidence": evidence}
    Desk(run.path).publish(answer)
    return answer
