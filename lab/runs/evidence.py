"""What is known of the ranks of a run at one moment, for the judge: docs/why.md describes it."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lab.diagnose.finding import Finding
from lab.diagnose.why import diagnose, review
from lab.node.protocol import Message
from lab.node.stall import PULSES

SCHEMA = 1
"""Of the evidence, and of why.json."""
SAID = (
    *("threads", "groups", "collectives", "blocks", "messages", "exchanges", "helpers"),
    *("unused", "env", "children"),
)
"""What the ranks' own answers have for the judge, each where it could be told."""
RAISED = ("kind", "message", "file", "line", "chain", "caught")
"""What is told of an exception."""


@dataclass
class RankRecord:
    """One rank, as far as it has been heard of."""

    node: str
    pid: int | None = None
    ended: Mapping[str, Any] | None = None
    last_output: float | None = None
    state: Message | None = None
    """The answer to the last question for all."""
    last_words: Message | None = None
    """What it said of itself as its script raised."""
    exception: Message | None = None
    """What its script raised: a SystemExit only where it handled another exception meanwhile."""
    pulses: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=PULSES))

    def beat(self, message: Message, asked: float) -> None:
        """Keep one pulse, with the time at which it was asked for: nodes' clocks may differ."""
        probe = message["probe"] or {}
        self.pulses.append(
            {
                "time": asked,
                "cpu_s": message["process"]["cpu_s"],
                "seqs": probe.get("seqs", {}),
                "pending": probe.get("pending", 0),
                "where": probe.get("where"),
            }
        )

    def take(self, answer: Message, asked: float) -> None:
        """Keep what its task has answered (a job of Slurm), by the clock of who asked."""
        behind = asked - answer["at"]  # which is when the task saw the question
        output = answer.get("last_output")
        self.state = answer
        self.last_output = None if output is None else output + behind
        self.pulses.clear()
        for pulse in answer.get("pulses", ()):  # what the task has seen by itself
            self.beat(pulse, pulse["at"] + behind)
        self.beat(answer, asked)

    def to_json(self, local_rank: int) -> dict[str, Any]:
        """Its part of the evidence."""
        state = self.state or {}
        # What the interpreter of a script that has raised does since is of no interest.
        told = (self.last_words or {}).get("probe") or state.get("probe") or {}
        said = {name: told[name] for name in SAID if name in told}
        return {
            "node": self.node,
            "local_rank": local_rank,
            "pid": self.pid,
            "ended": self.ended,
            "process": state.get("process"),
            "source": state.get("source") or ("probe" if told else None),
            "error": state.get("error"),
            "time": told.get("time", state.get("at")),
            "last_output": self.last_output,
            "exception": self.exception and {name: self.exception.get(name) for name in RAISED},
            "threads": [],
            "groups": [],
            "collectives": [],
            **said,
            "pulses": list(self.pulses),
        }


@dataclass
class NodeRecord:
    """One node, as far as it has been heard of."""

    alive: bool = True
    answered: bool = True
    """To the last question."""
    ptrace: str | None = None
    port: int | None = None
    """Where the others may try to reach it."""
    peers: Mapping[str, str] = field(default_factory=dict)
    master: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Its part of the evidence."""
        return {
            "alive": self.alive,
            "answered": self.answered,
            "ptrace": self.ptrace,
            "peers": dict(self.peers),
            "master": self.master,
        }


class Record:
    """All that has been heard of the ranks and nodes of one attempt."""

    def __init__(self, nodes_of_ranks: Mapping[int, str], nodes: list[str]) -> None:
        """Where the ranks are, as the topology has it."""
        self.ranks = {rank: RankRecord(node) for rank, node in nodes_of_ranks.items()}
        self.nodes = {name: NodeRecord() for name in nodes}
        self.master: str | None = None

    def _on_started(self, message: Message) -> None:
        """A rank has begun: perhaps another time, and perhaps elsewhere (torchrun)."""
        self.ranks[message["rank"]] = RankRecord(message["node"], message["pid"])
        world = message.get("world")
        if world is not None:
            self.master = world["master"]
            for rank in [rank for rank in self.ranks if rank >= world["ranks"]]:
                del self.ranks[rank]

    def on_message(self, message: Message) -> None:
        """Whatever an agent has told by itself."""
        if message["type"] == "started":
            self._on_started(message)
            return
        known = self.ranks.get(message.get("rank", -1))
        if known is None or message["node"] != known.node:  # it is another's by now (torchrun)
            return
        if message["type"] == "exit":
            known.ended = {"code": message["code"], "signal": message["signal"]}
        elif message["type"] == "state":
            known.last_words = known.last_words or message  # the first: see `lab.node.pipes`
        elif message["type"] == "exception":
            known.exception = message
        elif message["type"] == "context" and message["chain"]:
            known.exception = {**message, **message["chain"][0]}

    def on_output(self, rank: int) -> None:
        """A rank wrote."""
        if rank in self.ranks:
            self.ranks[rank].last_output = time.time()

    def on_node(self, node: str, message: Message) -> None:
        """All ranks of a node have answered."""
        known = self.nodes[node]
        known.answered = True
        known.port = message["port"] or known.port
        known.ptrace = message["ptrace"] or known.ptrace
        known.peers = message["peers"] or known.peers
        known.master = message["master"] or known.master

    def forget_pulses(self) -> None:
        """Keep the last ones: before them the ranks made progress."""
        for known in self.ranks.values():
            while len(known.pulses) > 1:
                known.pulses.popleft()
        self.forget_reach()

    def forget_reach(self) -> None:
        """What the nodes could reach: that was before."""
        for node in self.nodes.values():
            node.peers, node.master = {}, None

    @property
    def has_met(self) -> bool:
        """Whether every rank that runs has been seen in a process group."""
        running = [known for known in self.ranks.values() if known.ended is None]
        return all(known.pulses and known.pulses[-1]["seqs"] for known in running)

    def hear_out(self, evidence: Mapping[str, Any]) -> None:
        """Add what is heard later of ranks that showed no stack: their last words, and their end.

        Who is raising, is being aborted or is at its end may be heard of only later. What the
        others did stays as it was then: it was that for which one has failed.
        """
        for rank, told in evidence["ranks"].items():
            known = self.ranks.get(int(rank))
            if known is None or any(one["main"] and one["frames"] for one in told["threads"]):
                continue
            if known.last_words is not None:
                told.update(known.to_json(told["local_rank"]), process=told["process"])
            told["ended"] = known.ended

    def evidence(
        self, because: str, stalled_s: float | None, failure: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """The document, of plain data."""
        local: dict[str, int] = {}
        ranks = {}
        for rank, known in sorted(self.ranks.items()):
            ranks[str(rank)] = known.to_json(local.setdefault(known.node, 0))
            local[known.node] += 1
        return {
            "schema": SCHEMA,
            "time": time.time(),
            "because": because,
            "stalled_s": None if stalled_s is None else round(stalled_s, 1),
            "world_size": len(self.ranks),
            "master": self.master,
            "failure": failure,
            "nodes": {name: known.to_json() for name, known in self.nodes.items()},
            "ranks": ranks,
        }


def judged(evidence: dict[str, Any]) -> tuple[Finding, dict[str, Any]]:
    """What the evidence shows, and what why.json says of it."""
    try:
        finding = diagnose(evidence)
    except Exception as error:  # noqa: BLE001 - a fault of the judge must not end the run
        what = f"the evidence could not be judged: {type(error).__name__}: {error}"
        finding = Finding("unknown", "error", what)
    return finding, _answer(finding, evidence)


def reviewed(evidence: dict[str, Any]) -> tuple[Finding, dict[str, Any]] | None:
    """The same of a run that has ended well, where something shows."""
    try:
        finding = review(evidence)
    except Exception:  # noqa: BLE001 - as above: it has ended well
        return None
    return None if finding is None else (finding, _answer(finding, evidence))


def _answer(finding: Finding, evidence: dict[str, Any]) -> dict[str, Any]:
    return {"schema": SCHEMA, "finding": finding.to_json(), "evidence": evidence}
