"""Ranks, places and times as sentences have them."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from itertools import groupby, takewhile
from signal import Signals
from typing import Any

from lab.node.words import shortened

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


def origin_in_words(chain: Sequence[Mapping[str, Any]]) -> str:
    """`, from KeyError: 'x' at data.py:10`: the first of the exceptions that led to the last one.

    Empty where it is the only one, or what was before is hidden (`from None`) or a library's own
    affair. `after` instead of `from`, where one of them came while another was handled.

    Args:
        chain: the exception and those before it, the last raised first (see `lab.node.protocol`).
    """
    before = list(takewhile(lambda one: one.get("how") in ("cause", "context"), chain[1:]))
    if not before:
        return ""
    origin = before[-1]
    is_cause = all(one["how"] == "cause" for one in before)
    place = place_in_words(origin["file"], origin["line"])
    if place is None and not is_cause:
        return ""
    said = origin["message"].strip().partition("\n")[0]
    words = shortened(f"{origin['kind']}{f': {said}' if said else ''}")
    return f", {'from' if is_cause else 'after'} {words}{f' at {place}' if place else ''}"


def signal_in_words(number: int) -> str:
    """`SIGKILL`, or the number where it has no name here."""
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


def clock(epoch: float) -> str:
    """The time of day on this machine: `12:03:11`."""
    return datetime.fromtimestamp(epoch).astimezone().strftime("%H:%M:%S")
