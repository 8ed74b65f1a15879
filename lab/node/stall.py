"""Whether a run makes progress, by the pulses of its ranks.

A rank makes progress when it comes to init_process_group, when one of its process groups begins an
operation, or when it writes, but for what torch writes of its own while it waits. It computes while
it uses the processor, however long that takes. A run is stalled when no rank makes progress and at
least one of them waits: it uses no processor, or a collective of its own has not ended while its
main thread stays in the same line. So a run in which all ranks compute for long without any
collective is not; one in which a rank waits for another one that computes is.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PULSES = 8
"""How many are kept of each rank, of those since there was progress."""
LEAST, MOST = 0.5, 2.0
"""Seconds between two pulses; in between a twelfth of the limit."""
IDLE = 0.05
"""Less than this part of a processor counts as none: a probe's own use is far less."""


_WAITS = re.compile(r"(\[rank\d+\]:)?\[[WE]\d{4} \S+ socket\.cpp:\d+\] \[c10d\] .*")
"""torch's word, at ever longer intervals, that it tries once more to reach the master."""


def is_progress(output: str) -> bool:
    """Whether what a rank wrote is more than that it still waits."""
    return not all(_WAITS.match(line) for line in output.splitlines())


@dataclass
class _Seen:
    """One rank, since it was first seen where it is."""

    at: float
    probe: Mapping[str, Any]
    cpu_s: float | None
    looks: int = 0
    busy: int = 0
    """At how many of them it wanted the processor."""

    def is_idle(self, cpu_s: float | None, now: float) -> bool:
        """Whether it has done nothing since.

        On a busy machine who computes may get little of the processor, but wants it most times.
        """
        if self.cpu_s is None or cpu_s is None:
            return True  # it has ended, or the system does not tell
        return 2 * self.busy <= self.looks and cpu_s - self.cpu_s < IDLE * (now - self.at)


def has_moved(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether a rank has made progress between two answers of its probe, but for its output."""
    joined = after.get("joins", False) and not before.get("joins", False)
    return joined or after.get("seqs", {}) != before.get("seqs", {})


class StallWatch:
    """Takes what the ranks show. Times are of a monotonic clock, in seconds."""

    def __init__(self, limit: float, now: float) -> None:
        """`limit`: seconds without progress that are too many."""
        self.limit = limit
        self.interval = min(max(limit / 12, LEAST), MOST)
        self._since = now
        self._asked_at = now
        self._seen: dict[int, _Seen] = {}
        self._waits_since: dict[int, float] = {}
        self._mute_since: float | None = None
        self._is_told = False
        self._is_held = False

    def hold(self, waits: bool, now: float) -> None:
        """A rank waits for the user, or does not any more."""
        self._is_held = waits
        self.progress(now)

    def progress(self, now: float) -> None:
        """Something has happened: a rank wrote, began, or ended."""
        self._since = now
        self._is_told = False

    def still_for(self, now: float) -> float:
        """Seconds since the last progress."""
        return now - self._since

    @property
    def look_at(self) -> float:
        """When the next pulse is due; none is while there is output."""
        due = max(self._since, self._asked_at) + self.interval
        if self._is_told or not self._waits_since:
            return due
        return min(due, max(self._over_at, self._asked_at + LEAST / 2))

    @property
    def _over_at(self) -> float:
        """When it will have been too long, as things are (where somebody waits)."""
        return max(self._since, min(self._waits_since.values())) + self.limit

    def feed(self, pulses: Mapping[int, Mapping[str, Any]], silent: set[int], now: float) -> bool:
        """Take one pulse of each rank; whether one has made progress since the last.

        Args:
            pulses: by rank the agent's `state`: `process`, and in `probe` `seqs`, `pending`, `at`
                and `joins`.
            silent: ranks of nodes that did not answer.
            now: when they were asked for.
        """
        for rank in silent:
            self._waits_since.setdefault(rank, now)
        moved = [
            self._feed(rank, told["process"], told["probe"] or {}, now)
            for rank, told in pulses.items()
        ]
        gone = (self._seen.keys() | self._waits_since.keys()) - pulses.keys() - silent
        for rank in gone:
            self._seen.pop(rank, None)
            self._waits_since.pop(rank, None)
        self._asked_at = now
        if pulses:
            self._mute_since = None
        if any(moved):
            self.progress(now)
        return any(moved)

    def hear_nobody(self, ranks: set[int], now: float) -> None:
        """Take a look at which no node answered: this machine is too busy, unless that lasts."""
        self._mute_since = now if self._mute_since is None else self._mute_since
        self._asked_at = now
        if now - self._mute_since >= self.limit:
            self.feed({}, ranks, now)

    def _feed(
        self, rank: int, process: Mapping[str, Any], probe: Mapping[str, Any], now: float
    ) -> bool:
        new = _Seen(now, probe, process["cpu_s"])
        seen = self._seen.setdefault(rank, new)
        if seen is new:
            return False
        if not probe:  # it could not answer this time, which is no news of it
            new.probe = seen.probe
        seen.looks += 1
        seen.busy += bool(process["busy"])
        moved = has_moved(seen.probe, new.probe)
        stays = probe.get("pending", 0) > 0 and new.probe.get("at") == seen.probe.get("at")
        if not moved and (stays or seen.is_idle(new.cpu_s, now)):
            self._waits_since[rank] = seen.at
        else:
            self._seen[rank] = new
            self._waits_since.pop(rank, None)
        return moved

    def stalled_for(self, now: float) -> float | None:
        """Seconds without progress, once for each stall, when they are too many."""
        if self._is_told or self._is_held or not self._waits_since or now < self._over_at:
            return None
        self._is_told = True
        return now - self._since
