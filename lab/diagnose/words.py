"""Ranks, places and times as sentences have them."""

from collections.abc import Collection
from datetime import datetime
from itertools import groupby
from signal import Signals

NOBODY_KNOWS = (
    "as many ranks did the one as the other, so that nothing tells which of them is right"
)


def ranks_in_words(ranks: Collection[int]) -> str:
    """`rank 3`, or `ranks 0-2, 5`."""
    parts: list[str] = []
    for _, unbroken in groupby(enumerate(sorted(ranks)), key=lambda pair: pair[1] - pair[0]):
        numbers = [str(rank) for _, rank in unbroken]
        parts += [f"{numbers[0]}-{numbers[-1]}"] if len(numbers) > 2 else numbers
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(parts)}"


def place_in_words(file: str | None, line: int | None) -> str | None:
    """`train.py:88`; None where the file is not known."""
    if file is None:
        return None
    return file if line is None else f"{file}:{line}"


def signal_in_words(number: int) -> str:
    """`SIGKILL`, or the number where it has no name here."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def clock(epoch: float) -> str:
    """The time of day on this machine: `12:03:11`."""
    return datetime.fromtimestamp(epoch).astimezone().strftime("%H:%M:%S")
