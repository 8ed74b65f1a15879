"""What is told of an exception: its type, its words and its place, and those before it."""

import re
import sys
import traceback
from collections.abc import Callable
from types import TracebackType, WrapperDescriptorType
from typing import Any

from .frames import is_users, shown

CHAIN_LIMIT = 10
"""How many exceptions of a chain are told of."""
LONGEST_MESSAGE = 10_000
CHAIN_MESSAGE = 1_000
BEGIN = "Traceback (most recent call last):"
_CARRIED = re.compile(rf"Caught (\w+) in (.+)\.\nOriginal {re.escape(BEGIN)}\n")
"""How torch's messages begin where it raises again what it caught in another process or thread
(`torch._utils.ExceptionWrapper`); the traceback follows."""
_FRAME = re.compile(r'^ +File "(.+)", line (\d+), in ', re.MULTILINE)

Told = dict[str, Any]
Place = tuple[str, int | None]


def _text(error: BaseException) -> str:
    """Its message; the words of a traceback where it has none to give."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - the script's own `__str__` may do anything
        return "<exception str() failed>"


def _plain_text(error: BaseException) -> str:
    """The same without running any code of the script, since it is another thread that asks."""
    is_plain = isinstance(type(error).__str__, WrapperDescriptorType)  # written in C
    if is_plain and all(isinstance(one, str | int | float | None) for one in error.args):
        return _text(error)
    return ", ".join(one for one in error.args if isinstance(one, str))


def handled(start_folder: str) -> dict[int, Told]:
    """By thread: the exception that it handles while it does what its stack shows.

    That is in an `except`, a `finally` or the end of a `with`. Those that have come through no line
    of the user's own code are a library's own affair.
    """
    found = {}
    for ident, current in sys._current_exceptions().items():
        error: Any = current
        if isinstance(error, tuple):  # Python 3.11
            error = error[1]
        trace = getattr(error, "__traceback__", None)
        if is_of_user(trace):
            found[ident] = described(error, trace, start_folder, _plain_text)
    return found


def is_of_user(trace: TracebackType | None) -> bool:
    """Whether it has come through a line of the user's own code."""
    return any(is_users(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(trace))


def described(
    error: BaseException,
    trace: TracebackType | None,
    start_folder: str,
    words: Callable[[BaseException], str] = _text,
) -> Told:
    """An exception as `lab.node.protocol` has it, without its traceback.

    Args:
        error: the exception.
        trace: where it was raised, without lab's own frames.
        start_folder: files below it are told of without it.
        words: makes its message, and those of the chain.

    Returns:
        `kind`, `message`, `file` and `line` (the innermost of the user's own code), `chain`, and
        `caught`: the process or thread in which torch caught it first, as torch calls that, or null
        where it was raised in this thread. Kind, message and place are then those of the original.
    """
    frames = _frames(trace)
    own = [frame for frame in frames if is_users(frame[0])]
    place = (own or frames)[-1] if frames else None
    kind, message, caught = type(error).__name__, words(error), None
    original = _original(message)
    if original is not None:
        kind, message, caught, own = original
        place = own[-1] if own else place
    told = {"kind": kind, "message": message[:LONGEST_MESSAGE], **_told(place, start_folder)}
    first = {**told, "message": message[:CHAIN_MESSAGE], "how": None}
    return {**told, "chain": [first, *_before(error, start_folder, words)], "caught": caught}


def _frames(trace: TracebackType | None) -> list[Place]:
    """File and line of each, the innermost last."""
    return [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(trace)]


def _told(place: Place | None, start_folder: str) -> Told:
    file, line = place or (None, None)
    return {"file": None if file is None else shown(file, start_folder), "line": line}


def _original(message: str) -> tuple[str, str, str, list[Place]] | None:
    """Kind, message, where it was caught, and places in the user's own code; None: not carried."""
    begin = _CARRIED.match(message)
    if begin is None:
        return None
    kind, where = begin.groups()
    last = message.rpartition(BEGIN)[2]  # of several the one that was raised last
    words = re.search(rf"^[^\s:]*\b{kind}(?:: |$)", last, re.MULTILINE)
    if words is None:
        return None
    frames = _FRAME.findall(last[: words.start()])
    own: list[Place] = [(file, int(line)) for file, line in frames if is_users(file)]
    return kind, last[words.end() :].rstrip("\n"), where, own


def _before(
    error: BaseException, start_folder: str, words: Callable[[BaseException], str]
) -> list[Told]:
    """Those that an exception was raised from or while handling, the last raised first.

    What `raise ... from None` hides is among them: it is hidden from who reads a traceback, and
    tells all the same that a rank has failed since it had lost its peer.
    """
    told: list[Told] = []
    seen = {id(error)}  # by identity: users may have an `__eq__`
    while len(seen) < CHAIN_LIMIT:
        how = "cause"
        before = error.__cause__
        if before is None:
            how = "hidden" if error.__suppress_context__ else "context"
            before = error.__context__
        if before is None or id(before) in seen:
            break
        seen.add(id(before))
        own = [frame for frame in _frames(before.__traceback__) if is_users(frame[0])]
        place = _told(own[-1] if own else None, start_folder)
        message = words(before)[:CHAIN_MESSAGE]
        told.append({"kind": type(before).__name__, "message": message, **place, "how": how})
        error = before
    return told
