"""The failures of an attempt as they come, and which of them is the cause of the others."""

import time
from dataclasses import replace

from lab.node.protocol import Message
from lab.node.victims import VICTIM_PATIENCE
from lab.runs.verdict import Failure, failure_from_exit

EXIT_PATIENCE = 0.7
"""Seconds for a rank that raised to write its traceback and end by itself."""


class Failures:
    """Keeps what went wrong until the attempt is judged; says when the others should be ended."""

    def __init__(self) -> None:
        self.stop_at: float | None = None
        """When to end the other ranks (monotonic clock), unless something happens before."""
        self._by_rank: dict[int, Failure] = {}  # in the order of their coming
        self._contexts: dict[int, Message] = {}  # by rank: how it chose its code
        self._lost: Failure | None = None
        self._closed = False

    def close(self) -> None:
        """From now on ranks end because we end them: no new failures."""
        self._closed = True

    def on_exception(self, node: str, message: Message) -> None:
        """A rank's script raised; it may take its time to end."""
        failure = Failure(
            rank=message["rank"],
            node=node,
            kind="exception",
            exit_code=1,
            exception=message["kind"],
            message=message["message"],
            file=message["file"],
            line=message["line"],
            traceback=message["traceback"],
            # The chain's messages are cut sooner.
            chain=(
                {**message["chain"][0], "message": message["message"]},
                *message["chain"][1:],
            ),
        )
        self._add(failure, EXIT_PATIENCE)

    def on_context(self, node: str, message: Message) -> None:
        """A rank is about to end with a code of its own."""
        self._contexts[message["rank"]] = message

    def on_exit(self, node: str, message: Message) -> None:
        """A rank ended, and not well."""
        rank = message["rank"]
        known = self._by_rank.get(rank)
        if known is None:
            failure = failure_from_exit(node, message)
            context = self._contexts.get(rank)
            if context is not None:
                file, line, chain = context["file"], context["line"], tuple(context["chain"])
                failure = replace(failure, file=file, line=line, chain=chain)
            self._add(failure, 0.0)
            return
        if message["signal"] is None:  # else it was we who ended it while it was dying
            self._by_rank[rank] = replace(known, exit_code=message["code"])
        self._add(self._by_rank[rank], 0.0)

    def on_lost(self, failure: Failure) -> None:
        """A node went away, or its agent cannot do its job."""
        if self._lost is None and not self._closed:
            self._lost = failure
        self.stop_at = time.monotonic()

    def _add(self, failure: Failure, patience: float) -> None:
        if self._closed and failure.rank not in self._by_rank:
            return
        self._by_rank.setdefault(failure.rank, failure)
        if failure.looks_like_victim:
            patience = VICTIM_PATIENCE
        stop_at = time.monotonic() + patience
        self.stop_at = stop_at if self.stop_at is None else min(self.stop_at, stop_at)

    def has_other_than(self, rank: int) -> bool:
        """Whether something failed, and not this rank."""
        return rank not in self._by_rank and self.first is not None

    @property
    def lost(self) -> Failure | None:
        """The first node that cannot take part any more."""
        return self._lost

    @property
    def first(self) -> Failure | None:
        """The first real failure: no victim, if there is any other."""
        likely = min(self._by_rank.values(), key=lambda failure: failure.consequence, default=None)
        if self._lost is not None and (likely is None or likely.looks_like_victim):
            return self._lost
        return likely

    @property
    def is_plain(self) -> bool:
        """Whether the first real failure tells by itself why it came."""
        return self.first is not None and self.first.is_plain

    @property
    def victims(self) -> tuple[int, ...]:
        """Ranks that failed as a consequence."""
        return self._beside_first(victims=True)

    @property
    def others(self) -> tuple[int, ...]:
        """Ranks that failed by themselves, beside the first."""
        return self._beside_first(victims=False)

    @property
    def other_reasons(self) -> tuple[str, ...]:
        """The `others` that failed for another reason than the first, one sentence for each."""
        first, others = self.first, self.others
        failed = sorted(self._by_rank.values(), key=lambda failure: failure.rank)
        reasons = {
            failure.reason: failure for failure in reversed(failed) if failure.rank in others
        }
        if first is not None:
            reasons.pop(first.reason, None)
        return tuple(str(failure) for failure in reversed(reasons.values()))

    def _beside_first(self, victims: bool) -> tuple[int, ...]:
        first = self.first
        return tuple(
            sorted(
                failure.rank
                for failure in self._by_rank.values()
                if failure != first and failure.looks_like_victim == victims
            )
        )
