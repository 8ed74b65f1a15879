"""What became of a run, as data and in words."""

import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from lab.diagnose.finding import Finding
from lab.diagnose.words import origin_in_words, signal_in_words
from lab.node.protocol import Message
from lab.node.victims import ABORTED, consequence
from lab.node.words import shortened

SCHEMA = 2
"""Of verdict.json; docs/verdict.md describes it."""
SPAWN_EXCEPTION = "ProcessRaisedException"
"""What torch.multiprocessing.spawn raises; its message ends with its child's own exception."""

NO_VERDICT = ("slow", "unknown")
"""Kinds of findings that blame nobody."""

Kind = Literal[
    "ok",
    "exception",  # a rank's script raised
    "exit",  # a rank ended with a code of its own
    "signal",  # a rank was ended by a signal that lab did not send
    "node-lost",  # a node, its agent or the connection to it went away
    "agent-error",  # an agent could not start its ranks
    "not-started",  # the nodes did not come up
    "lab-error",  # lab itself could not go on: the disk of the run directory is full
    "timeout",  # not done within --timeout
    "stalled",  # no rank made progress for --stall seconds, with --on-stall stop
    "audit",  # all ranks ended well, but the audit found errors
    "interrupted",  # Ctrl-C, or another signal to lab itself
]


@dataclass(frozen=True)
class Failure:
    """One rank's end that was not a good one."""

    rank: int
    node: str
    kind: Kind
    exit_code: int
    """As a shell says it: 128 + n for signal n."""
    exception: str | None = None
    """The exception's type."""
    message: str | None = None
    file: str | None = None
    line: int | None = None
    traceback: str | None = None
    chain: tuple[Mapping[str, Any], ...] = ()
    """The exception, or the SystemExit that it became, and those that it was raised from or while
    handling, the last raised first: see `lab.node.protocol`."""
    last_lines: tuple[str, ...] = ()
    """The end of what the rank wrote: see `lab.runs.last_lines`."""
    oom_limit: int | None = None
    """Where the kernel killed the rank since its node was out of memory: the limit in bytes."""

    def found_port_taken(self, port: int) -> bool:
        """Whether rank 0 could not open the rendezvous there, so that training has not begun.

        Torch names the port; another one is the script's own affair.
        """
        said = self.message or ""
        return self.rank == 0 and "EADDRINUSE" in said and bool(re.search(rf"\b{port}\b", said))

    @property
    def consequence(self) -> int:
        """How much this looks like the fault of another rank: see `lab.node.victims`."""
        return consequence(self.chain)

    @property
    def looks_like_victim(self) -> bool:
        """Whether this is what happens to a rank when another one has failed."""
        return self.consequence > 0

    @property
    def is_plain(self) -> bool:
        """Whether it tells by itself why it came; else it takes what other ranks do."""
        return not self.looks_like_victim and self.exit_code != ABORTED

    @property
    def reason(self) -> tuple[object, ...]:
        """What is the same where ranks have failed for the same reason."""
        if self.exception is not None:
            return self.exception, self.file, self.line
        return self.kind, self.exit_code

    def __str__(self) -> str:
        what = {
            "exception": self._exception,
            "signal": self._ended_by,
            "exit": f"exited with code {self.exit_code}{self._where}",
        }.get(self.kind, shortened(self.message or self.kind))
        return f"rank {self.rank} on {self.node}: {what}"

    @property
    def _ended_by(self) -> str:
        if self.oom_limit is not None:
            return f"killed: out of memory (the node's limit is {_size(self.oom_limit)})"
        return self.message or f"ended by {signal_name(self.exit_code - 128)}"

    @property
    def _exception(self) -> str:
        lines = (self.message or "").strip().splitlines()
        telling = lines[-1:] if self.exception == SPAWN_EXCEPTION else lines[:1]
        return f"{shortened(': '.join([str(self.exception), *telling]))}{self._where}"

    @property
    def _where(self) -> str:
        place = f" ({self.file}:{self.line})" if self.file else ""
        return f"{place}{origin_in_words(self.chain)}"


@dataclass(frozen=True)
class Verdict:
    """The outcome of a run; `verdict.json` is `to_json` of it."""

    kind: Kind
    exit_code: int
    summary: str
    """One line for people."""
    first: Failure | None = None
    """The first real failure."""
    victims: tuple[int, ...] = ()
    """Ranks that failed because of it, before they could be ended."""
    others: tuple[int, ...] = ()
    """Ranks that failed by themselves as well."""
    other_reasons: tuple[str, ...] = ()
    """Why, of those that failed for another reason than the first: a sentence for each reason."""
    ended: tuple[int, ...] = ()
    """Ranks that lab ended because of it."""
    hint: str | None = None
    """What to do about it, where that is known."""
    why: Finding | None = None
    """Why it failed or hung, and who did it (`lab why`)."""
    findings: tuple[Finding, ...] = ()
    """Of the audit (`lab run --audit`)."""
    silent: tuple[str, ...] = ()
    """Nodes that did not answer when they were told to end their ranks."""
    lost_nodes: tuple[str, ...] = ()
    """Nodes that the job went on without (`--min-nodes`)."""
    seconds: float = 0.0
    """From the start of the ranks to the end of the last."""
    max_rss_kib: dict[str, int] = field(default_factory=dict)
    """Peak memory of the controller and of each node's agent, in KiB."""

    @property
    def is_of_another(self) -> bool:
        """Whether another rank did it than the one that failed first: `why` names it."""
        why = self.why
        if self.first is None or why is None or why.kind in NO_VERDICT:
            return False
        return bool(why.ranks) and self.first.rank not in why.ranks

    def with_why(self, why: Finding | None) -> "Verdict":
        """With why it failed: then the summary is about who did it, and no hint need wonder."""
        told = replace(self, why=why)
        if why is None or self.first is None or not told.is_of_another:
            return told
        consequence = f"rank {self.first.rank} failed as a consequence"
        return replace(told, summary=f"{why.summary}; {consequence}", hint=None)

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the schema's version."""
        return {"schema": SCHEMA, **asdict(self)}


def signal_name(number: int) -> str:
    """Its name, and what it usually means."""
    name = signal_in_words(number)
    meanings = {
        "SIGKILL": "killed, perhaps out of memory",
        "SIGSEGV": "invalid memory access",
        "SIGABRT": "abort",
        "SIGBUS": "bus error, perhaps /dev/shm is full",
        "SIGTERM": "asked to end",
    }
    return f"{name} ({meanings[name]})" if name in meanings else name


def ranks_in_words(ranks: Collection[int]) -> str:
    """`rank 3`, or `ranks 0, 1, 2`; of many, the first eight."""
    shown = ", ".join(str(rank) for rank in sorted(ranks)[:8])
    more = f", ... ({len(ranks)} in all)" if len(ranks) > 8 else ""
    return f"rank{'s' * (len(ranks) > 1)} {shown}{more}"


def _size(count: int) -> str:
    """Bytes as a topology writes them: 2g, 512m."""
    for unit, suffix in ((1 << 30, "g"), (1 << 20, "m")):
        if count >= unit:
            return f"{count / unit:.4g}{suffix}"
    return f"{count} bytes"


def failure_from_exit(node: str, message: Message) -> Failure:
    """The failure of a rank that ended without a word, from its agent's `exit`."""
    kind: Kind = "exit" if message["signal"] is None else "signal"
    return Failure(message["rank"], node, kind, message["code"], oom_limit=message.get("oom_limit"))
