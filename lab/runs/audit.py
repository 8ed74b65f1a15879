"""What the ranks of an audited run note goes to the judges, and what they find to the listeners."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lab.diagnose.audit import Audit
from lab.diagnose.finding import Finding
from lab.errors import EXIT_AUDIT
from lab.node.protocol import Message
from lab.runs.verdict import Verdict
from lab.topology import Topology


class Auditing:
    """The audit of one run, over all its attempts: each begins with nothing found."""

    def __init__(self, topology: Topology, tell: Callable[[Message], None]) -> None:
        """`tell` gets an event of type `finding` for each of them, as soon as it is there."""
        self._world_size = topology.world_size
        self._nodes = {rank.rank: rank.node.name for rank in topology.ranks()}
        self._tell = tell
        self._audit: Audit | None = None
        self._steps = 0
        """The last optimizer step that was told of."""

    def event(self, message: Message) -> None:
        """Take what concerns the audit of all that happens."""
        if message["type"] == "started":
            self._nodes[message["rank"]] = message["node"]
            self._world_size = message.get("world", {}).get("ranks", self._world_size)
        elif message["type"] == "restart":
            self._audit, self._steps = None, 0
        elif message["type"] == "audit":
            self._feed(message["rank"], message["record"])

    def _feed(self, rank: int, record: Mapping[str, Any]) -> None:
        if record["check"] == "broken":
            self._say_broken(f"rank {rank}: {record['what']}")
            return
        if self._audit is None:
            self._audit = Audit(self._world_size, self._nodes)
        if record["check"] == "replica":
            self._steps = max(self._steps, record["step"])
        self._say(self._audit.feed(rank, record))

    def close(self, verdict: Verdict) -> Verdict:
        """The verdict with all that was found; a run that ended well may not have been good."""
        if self._audit is None:
            return verdict
        self._say(self._audit.close())
        findings = tuple(self._audit.findings)
        errors = [finding for finding in findings if finding.severity == "error"]
        if verdict.kind == "ok" and not findings:
            saw = f"found nothing in {self._steps} step{'s' * (self._steps > 1)}"
            saw = saw if self._steps else "saw no step of an optimizer"
            return replace(verdict, summary=f"{verdict.summary}, and the audit {saw}")
        if verdict.kind != "ok":
            return replace(verdict, findings=findings)
        warnings = len(findings) - len(errors)
        counted = ((len(errors), "error"), (warnings, "warning"))
        found = " and ".join(f"{n} {word}{'s' * (n > 1)}" for n, word in counted if n)
        so = "but" if errors else "and"
        summary = f"{verdict.summary}, {so} the audit found {found}"
        if errors:
            verdict = replace(verdict, kind="audit", exit_code=EXIT_AUDIT)
        return replace(verdict, summary=summary, findings=findings)

    def _say(self, findings: Sequence[Finding]) -> None:
        assert self._audit is not None
        for finding in findings:
            self._tell({"type": "finding", "finding": finding.to_json()})
        while self._audit.broken:
            self._say_broken(self._audit.broken.pop())

    def _say_broken(self, what: str) -> None:
        """A fault of ours."""
        self._tell({"type": "audit-broken", "what": what})
