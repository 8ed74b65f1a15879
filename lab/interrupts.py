"""The wish that all end. Ctrl-C is counted: an exception can be lost, a count cannot.

Python ignores what is raised in a callback of an import or of the garbage collector,
KeyboardInterrupt too. Whoever is about to start something asks here whether it is still wanted.
"""

import signal
from types import FrameType

_count = 0


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
