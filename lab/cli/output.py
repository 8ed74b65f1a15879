"""Writing to a terminal or a pipe that may go away while a run goes on."""

import errno
import os
import re
import sys
from typing import TextIO

from lab import interrupts

UNSEEN = ", as far as can be seen: no Docker engine answers"
"""What is added where nothing is found, and containers were not looked at."""
GONE = (errno.EPIPE, errno.EIO)
"""What writing says when a pipe's reader, or a terminal, has gone."""

_COLOUR = r"\x1b\[[\d;:]*m"
_CONTROL = re.compile(
    rf"(?!{_COLOUR})(?:"
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # moves of the cursor, clearing, modes
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)"  # titles and other texts for the terminal
    r"|\x1b[ -/]*[0-~]?"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f])",
    re.MULTILINE,
)
"""What a terminal obeys, but for colours, tabs and line breaks (ECMA-48, section 5)."""
_COLOUR_LEFT_ON = re.compile(r"(\x1b\[(?!0?m)[\d;:]*m[^\x1b\n]*)$", re.MULTILINE)


def say(text: str) -> None:
    """One line of lab's own, on stderr."""
    write(f"{text}\n", sys.stderr)


def write(text: str, file: TextIO | None) -> None:
    """Write and flush. Where nobody reads any more, ask this process to end, and go on unseen.

    A file that was closed before we began (`>&-`) is None in `sys`, and nobody wants to see it.

    A terminal that closes sends SIGHUP itself. A pipe says nothing but the error, so that its end
    is made a SIGTERM, which the run controller takes as a wish to end in order; one for both pipes.
    """
    if file is None:
        return
    try:
        file.write(printable(text, file))
        file.flush()
    except OSError as error:
        if error.errno not in GONE:
            raise
        print_nowhere(file)
        if error.errno == errno.EPIPE:
            interrupts.end_unread()


def print_nowhere(file: TextIO) -> None:
    """Have what is written there from now on, and what still waits to be, vanish unseen."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, file.fileno())
    os.close(null)


def printable(text: str, file: TextIO) -> str:
    """The text as the file can take it.

    What its encoding cannot say is replaced; bytes that were no UTF-8, too. A terminal gets no
    control codes but colours, which end with their line: several ranks share it.
    """
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if file.isatty():
        text = _COLOUR_LEFT_ON.sub("\\1\x1b[0m", _CONTROL.sub("", text))
    encoding = file.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def one_line(text: str) -> str:
    """The text with its line breaks and other control codes written out, for tables."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f]", lambda found: repr(found[0])[1:-1], text)
