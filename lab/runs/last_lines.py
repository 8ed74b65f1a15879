"""The end of what every rank has written, to say it again when the rank has failed."""

import itertools
from collections import deque

from lab.lines import Lines

LAST_LINES = 30
WIDTH = 2000
"""Characters of each line."""
KEPT = 1 << 14
"""Characters that are kept of each stream."""
PIECE = 100
"""Characters that a piece counts on top of its own: it takes memory too."""
TRACEBACK = "Traceback (most recent call last)"


class LastLines:
    """Takes the chunks of all streams; cheap, since lines are made of them only when asked for."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._tails: dict[tuple[int, str], _Tail] = {}

    def log(self, rank: int, stream: str, text: str) -> None:
        """A chunk of a rank's output, in the order of arrival."""
        self._tails.setdefault((rank, stream), _Tail()).add(next(self._numbers), text)

    def clear(self) -> None:
        """The ranks begin again."""
        self._tails.clear()

    def of(self, rank: int) -> tuple[str, ...]:
        """A rank's last lines: of both streams, or of stderr alone where a traceback is there."""
        streams = {stream: self._tails.get((rank, stream), _Tail()) for stream in ("out", "err")}
        pieces = sorted(
            (number, stream, text)
            for stream, tail in streams.items()
            for number, text in tail.pieces()
        )
        lines: list[tuple[str, str]] = []
        readers = {stream: Lines() for stream in streams}
        for _, stream, text in pieces:
            lines += [(stream, line) for line in readers[stream].feed(text)]
        for stream, reader in readers.items():
            lines += [(stream, line) for line in reader.end()]
        errors = [(stream, line) for stream, line in lines if stream == "err"]
        if any(TRACEBACK in line for _, line in errors):
            lines = errors
        return tuple(_readable(line[:WIDTH]) for _, line in lines[-LAST_LINES:])


class _Tail:
    """The last `KEPT` characters of a stream, and a little more."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[int, str]] = deque()
        self._size = 0
        self._is_cut = False

    def add(self, number: int, text: str) -> None:
        self._is_cut = self._is_cut or len(text) > KEPT
        self._pieces.append((number, text[-KEPT:]))
        self._size += _cost(text[-KEPT:])
        while self._size - _cost(self._pieces[0][1]) >= KEPT:
            self._size -= _cost(self._pieces.popleft()[1])
            self._is_cut = True

    def pieces(self) -> list[tuple[int, str]]:
        """In order, each with its number; from the first whole line on, if there is one."""
        pieces = list(self._pieces)
        cut = next((at for at, (_, text) in enumerate(pieces) if "\n" in text), None)
        if not self._is_cut or cut is None:
            return pieces
        number, text = pieces[cut]
        whole = [(number, text.partition("\n")[2]), *pieces[cut + 1 :]]
        return whole if any(text for _, text in whole) else pieces


def _cost(text: str) -> int:
    return len(text) + PIECE


def _readable(line: str) -> str:
    """With a sign of replacement for what is no UTF-8: JSON readers refuse what stands for it."""
    return line.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
