"""Attempts whose ranks are started by torchrun, and what changes when it may form new worlds."""

from dataclasses import replace
from signal import SIGTERM

from lab.node.protocol import Message, NodeJob
from lab.runs.attempt import HELLO_TIMEOUT, Attempt
from lab.runs.failures import Failures
from lab.runs.membership import Membership
from lab.runs.nodes import AgentLink
from lab.runs.verdict import Kind, Verdict
from lab.topology import Node


class TorchrunAttempt(Attempt):
    """An attempt whose ranks are workers of each node's torchrun, numbered as the topology says."""

    hello_timeout = 3 * HELLO_TIMEOUT  # torch is imported before

    def _on_exit(self, link: AgentLink, message: Message) -> None:
        rank = message["rank"]
        if message["signal"] == SIGTERM and self._failures.has_other_than(rank):
            self._alive.discard(rank)
            self._ended.add(rank)  # by torchrun, as the other ranks of a node where one failed
        else:
            super()._on_exit(link, message)
        self._look_for_end()

    def _misses_ranks_of(self, node: Node) -> bool:
        return False  # torchrun's own end tells

    @property
    def _all_ended_well(self) -> bool:
        return not self._alive and self._failures.first is None

    def _look_for_end(self) -> None:
        """End the torchruns when the ranks have ended.

        They would wait for each other, for minutes where a node is lost.
        """
        if self._all_ended_well and not self._stopped:
            self._stop("end", 0.0)

    def _on_torchrun(self, link: AgentLink, message: Message) -> None:
        """Take note of the end of a torchrun. If ranks failed, that was told before."""
        if message["code"] != 0 and self._failures.first is None:
            words = message["message"] or "somebody else ended it"
            self._lose(link, "agent-error", f"torchrun ended: {words}")


class ElasticAttempt(TorchrunAttempt):
    """An attempt in which torchrun starts all ranks again after a failure or without lost nodes.

    So neither is final before torchrun has given up, on any node.
    """

    membership: Membership

    def _begin(self, jobs: list[NodeJob]) -> None:
        fewest = jobs[0].min_nodes
        assert fewest is not None
        self.membership = Membership([job.node for job in jobs], fewest)
        super()._begin(jobs)
        self._alive.clear()  # they tell when they start

    @property
    def _stop_at(self) -> float | None:
        return super()._stop_at if self.membership.gave_up else None

    @property
    def _world_size(self) -> int:
        return self.membership.ranks

    def _is_running(self) -> bool:
        return True

    def _ranks_of(self, node: Node) -> set[int]:
        return self.membership.ranks_on(node.name) or super()._ranks_of(node)

    def _on_started(self, link: AgentLink, message: Message) -> None:
        if self.membership.on_started(message):
            first, self._failures = self._failures.first, Failures()
            because = "a node has joined" if first is None else str(first)
            count, size = self.membership.restarts, self.membership.size
            self._alive.clear()
            self._ended.clear()
            self._listener.event(
                {"type": "restart", "count": count, "because": because, "size": size}
            )
        self._alive.add(message["rank"])

    def _on_exception(self, link: AgentLink, message: Message) -> None:
        if self.membership.knows(message):
            super()._on_exception(link, message)

    def _on_context(self, link: AgentLink, message: Message) -> None:
        if self.membership.knows(message):
            super()._on_context(link, message)

    def _on_exit(self, link: AgentLink, message: Message) -> None:
        if self.membership.knows(message):
            self.membership.on_exit(message)
            super()._on_exit(link, message)

    def _on_torchrun(self, link: AgentLink, message: Message) -> None:
        if message["code"] != 0 and not self._stopped:
            self.membership.gave_up = True
            super()._on_torchrun(link, message)

    def _lose(self, link: AgentLink, kind: Kind, reason: str) -> None:
        name = link.node.name
        if self._stopped:
            return  # no news: it had to end
        goes_on = kind == "node-lost" and self.membership.lose(name)
        if not goes_on:
            self.membership.gave_up = True
            if kind == "node-lost":
                reason += f"; {self.membership.why_not_without(name)}"
        super()._lose(link, kind, reason)
        if goes_on:
            self._alive -= self.membership.ranks_on(name)
            self._listener.event({"type": "lost", "node": name, "message": reason})
            self._look_for_end()

    @property
    def _all_ended_well(self) -> bool:
        return self.membership.all_ended_well

    def _judge(self) -> Verdict:
        if not self.membership.gave_up:
            self._failures = Failures()  # whatever there was, torchrun went on
        verdict = super()._judge()
        lost = self.membership.lost
        if not lost:
            return verdict
        summary = verdict.summary
        if verdict.kind == "ok":
            summary += f", without {', '.join(lost)}"
        return replace(verdict, summary=summary, lost_nodes=lost)
