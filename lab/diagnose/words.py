"""Ranks, places and times as sentences have them."""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime


def ranks_in_words(ranks: Collection[int]) -> str:
    """`rank 3`, or `ranks 0-2, 5`."""
    runs = [
        f"{a}" if a == b else f"{a}, {b}" if b == a + 1 else f"{a}-{b}" for a, b in _runs(ranks)
    ]
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(runs)}"


def _runs(ranks: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Unbroken runs of numbers: first and last."""
    first = last = None
    for rank in sorted(ranks):
        if first is not None and last is not None and rank == last + 1:
            last = rank
            continue
        if first is not None and last is not None:
            yield first, last
        first = last = rank
    if first is not None and last is not None:
        yield first, last


def place_in_words(file: str | None, line: int | None) -> str | None:
    """`train.py:88`; None where the file is not known."""
    if file is None:
        return None
    return file if line is None else f"{file}:{line}"


def clock(epoch: float) -> str:
    """The time of day on this machine: `12:03:11`."""
    return datetime.fromtimestamp(epoch).astimezone().strftime("%H:%M:%S")
