"""Counts of what sharding costs: bytes that live on this rank, and bytes that it sends."""

from dataclasses import dataclass, field


@dataclass
class Level:
    """Bytes that are there now, and at most so far."""

    now: int = 0
    peak: int = 0

    def add(self, nbytes: int) -> None:
        """More, or less."""
        self.now += nbytes
        self.peak = max(self.peak, self.now)


@dataclass
class Meter:
    """Of one model on this rank."""

    sent_bytes: int = 0
    """Of tensors, to other ranks, since construction."""
    parameters: Level = field(default_factory=Level)
    """Full parameters, beside the shards."""
    gradients: Level = field(default_factory=Level)
    """Full gradients: collected, being sent and being received."""
