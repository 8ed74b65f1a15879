"""Whether a rank is slower than the others, and whether all of them mostly wait."""

from collections import Counter
from collections.abc import Mapping
from statistics import median

from lab.diagnose.audit.columns import Column, Columns
from lab.diagnose.audit.records import Record, line_of
from lab.diagnose.finding import Finding, Innocent
from lab.diagnose.words import place_in_words, ranks_in_words

SLOWER = 0.5
"""Of the others' own time in a step: what a straggler takes more."""
LEAST = 5e-3
"""Seconds of a step: less is not worth a word."""
WINDOWS = 2
"""In a row, until it is no chance."""
BOUND = 0.5
"""Of the time of a step, on every rank: what is waiting, where communication dominates."""
SURELY = 0.8
"""The same where batches are not small; a busy machine makes ranks wait, too."""
SMALL = 64
"""Samples, or tokens, of a step: an exchange takes as long as the work on so many, or longer."""
LARGE = 1 << 20
"""Bytes of gradients: of fewer the time goes into latency, and the model is a toy."""
WORDS = {
    "data": "waiting for its DataLoader",
    "forward": "in the forward pass",
    "backward": "in the backward pass",
    "optimizer": "in the optimizer's step",
    "collectives": "preparing collectives",
    "other": "in the script between these",
}


class Pace:
    """Compares what each step takes on each rank, without what it waits for others."""

    checks = frozenset({"pace"})

    def __init__(self, world_size: int) -> None:
        self._windows: Columns[int] = Columns(world_size)
        self._slow: Counter[int] = Counter()  # by rank: windows in a row
        self._bound = 0

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        window = self._windows.add(record["window"], rank, record)
        if window is None or len(window) < 2:
            return []
        return self._judge_straggler(window) or self._judge_waiting(window)

    def close(self) -> list[Finding]:
        """Nothing is left to be said of steps that some ranks never took."""
        return []

    def _judge_straggler(self, window: Column) -> list[Finding]:
        own = {rank: median(record["own"]) for rank, record in window.items()}
        waiting = {rank: median(record["waiting"]) for rank, record in window.items()}
        slow = max(own, key=lambda rank: own[rank])
        others = [rank for rank in window if rank != slow]
        usual = median(own[rank] for rank in others)
        excess = own[slow] - usual
        # And the others wait for it about so long: else it is slow for itself alone.
        waited = median(waiting[rank] for rank in others) - waiting[slow]
        if excess < max(LEAST, SLOWER * usual) or waited < excess / 2:
            self._slow.clear()
            return []
        self._slow = Counter({slow: self._slow[slow] + 1})
        if self._slow[slow] != WINDOWS:
            return []
        return [self._say_straggler(slow, others, own[slow], usual, window)]

    def _say_straggler(
        self, slow: int, others: list[int], own: float, usual: float, window: Column
    ) -> Finding:
        record = window[slow]
        phases: Mapping[str, float] = record["phases"]
        usually = {
            name: median(window[rank]["phases"].get(name, 0.0) for rank in others)
            for name in phases
        }
        phase = max(phases, key=lambda name: phases[name] - usually[name])
        places = [place for place in record["places"] if place[0] == phase] or record["places"]
        _, file, line, function, _ = places[0] if places else (None,) * 5
        where = place_in_words(file, line)
        alone = "s" * (len(others) == 1)
        return Finding(
            kind="straggler",
            severity="warning",
            summary=f"rank {slow} takes {own * 1e3:.1f} ms of its own for a step, where "
            f"{ranks_in_words(others)} take{alone} {usual * 1e3:.1f} ms and wait{alone} for it; "
            f"most of it {WORDS[phase]}{f', at {where}' if where else ''}",
            ranks=(slow,),
            step=record["step"],
            file=file,
            line=line,
            function=function,
            innocent=(Innocent(tuple(others), f"wait{alone} for rank {slow} at each step"),),
            evidence=tuple(
                f"{WORDS[name]}: {phases[name] * 1e3:.1f} ms of a step on rank {slow}, "
                f"{usually[name] * 1e3:.1f} ms on the others"
                for name in sorted(phases, key=lambda name: -phases[name])
                if phases[name] > own / 20
            ),
            cure="give each rank as much work; where the work is equal, look at its node",
        )

    def _judge_waiting(self, window: Column) -> list[Finding]:
        shares = {}
        for rank, record in window.items():
            waiting = median(record["waiting"])
            shares[rank] = waiting / max(waiting + median(record["own"]), 1e-9)
        large = min(record["bytes"] for record in window.values()) >= LARGE
        small = max(record["items"] for record in window.values()) <= SMALL
        if not large or min(shares.values()) < (BOUND if small else SURELY):
            self._bound = 0
            return []
        self._bound += 1
        if self._bound != WINDOWS:
            return []
        one = window[0]
        return [
            Finding(
                kind="communication-bound",
                severity="warning",
                summary=f"of each step {min(shares.values()):.0%} and more is waiting for the "
                f"exchange of {one['bytes'] / (1 << 20):.1f} MiB of gradients: the batches, of "
                f"{one['items']:g} samples or tokens a step on each rank, are too small for it",
                ranks=tuple(sorted(window)),
                step=one["step"],
                **line_of(one),
                evidence=tuple(
                    f"rank {rank}: {median(record['own']) * 1e3:.1f} ms of its own and "
                    f"{median(record['waiting']) * 1e3:.1f} ms of waiting in a step"
                    for rank, record in sorted(window.items())
                ),
                cure="larger batches, or more microbatches between exchanges (no_sync); fewer "
                "ranks; a faster link",
            )
        ]
