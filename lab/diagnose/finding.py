"""What a judge has found: who is guilty of what, where; and who waits, innocent."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

WhyKind = Literal[
    # What the ranks do differs: found by their collectives.
    "skipped-collective",  # a rank went past one that the others wait in
    "extra-collective",  # a rank waits in one that the others never call
    "mismatched-collective",  # the same number, but another operation, shape, dtype or root
    "deadlock",  # ranks call the collectives of two groups in different order
    "unused-parameter",  # a gradient that never comes is waited for
    # A rank is not there: found by its process and its node.
    "ended-early",  # it has ended, and well, while others wait for it
    "failed",  # it, or a thread or process of its own, has ended with an exception, code or signal
    "dead",  # its process or its node is gone without a word
    "paused",  # its process is stopped
    "partitioned",  # nodes cannot reach each other
    "rendezvous",  # it has not come to the start, for which all others wait
    # A rank is late: found by its stack and its use of the processor.
    "data-loader",  # it waits for data
    "busy-alone",  # it does something that the others have not to do: preprocessing, a checkpoint
    # No verdict.
    "slow",  # no hang: the ranks go on, slowly
    "unknown",  # what was seen does not tell
]
AuditKind = Literal[
    "separate-worlds",  # the ranks have not met each other
    # Replicas that are none.
    "weights-differ-at-start",
    "parameters-differ",
    "buffers-differ",
    "training-mode-differs",
    "parameter-order-differs",
    # Data.
    "same-batch",
    "overlapping-samples",
    "missing-samples",
    "order-never-changes",
    # Gradients.
    "gradients-not-reduced",
    "gradients-reduced-twice",
    "no-sync-at-step",
    "local-norm-clipping",
    "no-gradient",
    "nan",
    # Communication.
    "mismatched-collective",
    "loss-not-averaged",
    "uneven-average",
    "same-file",
    "same-random-state",
    "different-random-state",
    # Use of the machines.
    "shared-gpu",
    "data-parallel",
    "straggler",
    "communication-bound",
]
Kind = WhyKind | AuditKind
Severity = Literal["error", "warning"]

WHY_KINDS: frozenset[str] = frozenset(get_args(WhyKind))
"""Why a run hangs or has died: `lab why`."""
AUDIT_KINDS: frozenset[str] = frozenset(get_args(AuditKind))
"""What a run does wrong while it goes on: `lab run --audit`."""


@dataclass(frozen=True)
class Innocent:
    """Ranks that only wait, and where."""

    ranks: tuple[int, ...]
    what: str
    """What they do there: `wait in all_reduce #17 [4,64] float32 of the default group`."""
    file: str | None = None
    line: int | None = None
    function: str | None = None
    since: float | None = None
    """Epoch seconds, where it is known."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, in words and as data. See docs/why.md and docs/audit.md.

    A finding is never guessed: what was seen but does not tell who is guilty is `unknown`, with the
    evidence.
    """

    kind: Kind
    severity: Severity
    summary: str
    """One sentence for people: who, where, what it did differently."""
    ranks: tuple[int, ...] = ()
    """The guilty ones, sorted."""
    nodes: tuple[str, ...] = ()
    """Where they are, in the order of the ranks, each once."""
    step: int | None = None
    """The optimizer step at which it was first seen, counted from 1."""
    file: str | None = None
    """Where the guilty rank is or what it did; relative to the start folder if it is below."""
    line: int | None = None
    function: str | None = None
    innocent: tuple[Innocent, ...] = ()
    evidence: tuple[str, ...] = ()
    """What was seen, one sentence each."""
    cure: str | None = None
    """What to change, where that is known."""

    def to_json(self) -> dict[str, Any]:
        """Plain data: what `verdict.json`, `why.json` and events hold."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Finding":
        """The finding that `to_json`, perhaps by way of a file, made this of.

        Raises:
            ValueError: it is none, or one of a kind that is not known here.
        """
        if data.get("kind") not in WHY_KINDS | AUDIT_KINDS:
            raise ValueError(f"no kind of finding that is known here: {data.get('kind')!r}")
        innocent = [Innocent(**{**one, "ranks": tuple(one["ranks"])}) for one in data["innocent"]]
        lists = {name: tuple(data[name]) for name in ("ranks", "nodes", "evidence")}
        return cls(**{**data, **lists, "innocent": tuple(innocent)})
