"""Writing to a terminal or a pipe that may go away while a run goes on."""

import errno
import os
import signal
import sys
from typing import TextIO

GONE = (errno.EPIPE, errno.EIO)
"""What writing says when a pipe's reader, or a terminal, has gone."""


def say(text: str) -> None:
    """One line of lab's own, on stderr."""
    write(f"{text}\n", sys.stderr)


def write(text: str, file: TextIO) -> None:
    """Write and flush. Where nobody reads any more, ask this process to end, and go on unseen.

    A terminal that closes sends SIGHUP itself. A pipe says nothing but the error, so that its end
    is made a SIGTERM, which the run controller takes as a wish to end in order.
    """
    try:
        file.write(printable(text, file))
        file.flush()
    except OSError as error:
        if error.errno not in GONE:
            raise
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, file.fileno())
        os.close(null)
        if error.errno == errno.EPIPE:
            signal.raise_signal(signal.SIGTERM)


def printable(text: str, file: TextIO) -> str:
    """The text with what the file's encoding cannot say replaced; bytes that were no UTF-8, too."""
    text = text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    encoding = file.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)
