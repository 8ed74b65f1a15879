"""Why a job of Slurm hangs or has failed, from what its ranks have left in the run directory."""

from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from signal import Signals
from typing import Any

from lab.batch.files import JobFiles, nodes_of
from lab.batch.inquiry import JobInquiry, settled, write_down
from lab.diagnose.finding import Finding
from lab.node.meeting import read
from lab.node.places import places
from lab.node.protocol import Message
from lab.node.questions import rank_answer
from lab.runs.directory import RunDirectory, explained
from lab.runs.evidence import Record, reviewed
from lab.runs.verdict import Failure
from lab.topology import Topology, load_topology

ENDING = (Signals.SIGTERM, Signals.SIGKILL)
"""How srun and slurmd end ranks."""


def ask_ranks(run: RunDirectory) -> dict[str, Any]:
    """What why.json holds: asked of all ranks that run now, and written down.

    Raises:
        LabError: none has begun, none answers, or the run directory cannot be written.
    """
    topology = load_topology(str(run.path / "topology.yaml"))
    with explained(run.path):
        return JobInquiry(run.path, JobFiles(run.path, nodes_of(topology))).ask()


def judge_failure(
    run: RunDirectory, topology: Topology, events: Iterable[Message], failure: Failure
) -> Finding:
    """Why a job has failed, by the last words of its ranks; written down, too."""
    nodes = nodes_of(topology)
    record = Record(places(nodes), nodes["names"])
    has_failed = False
    for message in events:
        if message["type"] == "asked":
            has_failed = True
            _read_answers(run.path, message, record)
        # From here on srun ends the others: they ran, when they were asked.
        elif not (has_failed and message["type"] == "exit" and message["signal"] in ENDING):
            record.on_message(message)
    evidence = record.evidence("failure", None, asdict(failure))
    return Finding.from_json(settled(run.path, evidence)["finding"])


def review_end(run: RunDirectory, topology: Topology, events: Iterable[Message]) -> Finding | None:
    """What shows of a job whose ranks have all ended well; written down, if anything does."""
    nodes = nodes_of(topology)
    record = Record(places(nodes), nodes["names"])
    for message in events:
        record.on_message(message)
    shown = reviewed(record.evidence("end", None, None))
    if shown is None:
        return None
    finding, answer = shown
    write_down(run.path, answer)
    return finding


def _read_answers(run: Path, asked: Message, record: Record) -> None:
    """What the other ranks did when one had failed."""
    for rank, known in record.ranks.items():
        state = read(rank_answer(run, asked["number"], rank))
        if isinstance(state, dict) and known.ended is None:
            known.take(state, asked["at"])


def why_stalled(events: Iterable[Message]) -> Finding | None:
    """What was last said of ranks that made no progress; None: they went on, or always did."""
    finding = None
    for message in events:
        if message["type"] == "why":
            finding = Finding.from_json(message["finding"])
        elif message["type"] == "progress":
            finding = None
        elif message["type"] == "stop":
            break  # the ranks are ended for it
    return finding
