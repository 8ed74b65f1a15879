"""The wish that all end. Ctrl-C is counted: an exception can be lost, a count cannot.

Python ignores what is raised in a callback of an import or of the garbage collector,
KeyboardInterrupt too. Whoever is about to start something asks here whether it is still wanted.
"""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_count = 0
_unread = False


class Terminated(SystemExit):
    """SIGTERM has come, or SIGHUP; it unwinds as Ctrl-C does."""

    def __init__(self, code: int) -> None:
        """`code`: what the process ends with, 128 + the signal."""
        super().__init__(code)
        self.left: tuple[str, ...] = ()
        """What is to be said of what it has left."""

    @property
    def is_told(self) -> bool:
        """Whether anybody is there to read of it: not where a terminal or a pipe was closed."""
        return self.code == 128 + signal.SIGTERM


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    global _count
    _count += 1
    raise KeyboardInterrupt


def catch() -> None:
    """From now on Ctrl-C is counted, and raises KeyboardInterrupt as ever."""
    signal.signal(signal.SIGINT, _interrupt)


def count() -> int:
    """How many there have been."""
    return _count


def end_unread() -> None:
    """Nobody reads what this process prints: ask it to end, as SIGTERM does; only once."""
    global _unread
    if not _unread:
        _unread = True
        signal.raise_signal(signal.SIGTERM)


def is_unread() -> bool:
    """Whether that has come."""
    return _unread


def cause(number: int) -> signal.Signals:
    """What a signal has come for: SIGPIPE where the SIGTERM is `end_unread`'s."""
    is_own = _unread and number == signal.SIGTERM
    return signal.SIGPIPE if is_own else signal.Signals(number)


def is_unwanted(number: int) -> bool:
    """Whether whoever started us does not want this signal heard (nohup)."""
    return number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN


def check() -> None:
    """Do not go on after a Ctrl-C.

    Raises:
        KeyboardInterrupt: there has been one.
    """
    if _count:
        raise KeyboardInterrupt


@contextmanager
def deferred() -> Iterator[Callable[[], None]]:
    """Have Ctrl-C, TERM and HUP come only when the block has ended.

    For what cannot be undone before somebody else has answered. What is yielded raises
    KeyboardInterrupt if one has come: to be called where the block may end early.
    """
    came: list[int] = []

    def check() -> None:
        if came:
            raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield check
        return
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    heard = [number for number in numbers if not is_unwanted(number)]
    before = {
        number: signal.signal(number, lambda number, _frame: came.append(number))
        for number in heard
    }
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
