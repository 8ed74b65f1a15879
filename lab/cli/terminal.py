"""Between this terminal and a command on a node."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lab.channel import Channel


def bridge(channel: "Channel", tty: bool) -> int:
    """Hand stdin to the command and its output to ours; the command's exit code."""
    threading.Thread(target=_feed, args=(channel,), daemon=True).start()
    try:
        with _raw_terminal(tty), _size_of_terminal(channel, tty):
            for stream, data in channel.output():
                file = sys.stdout if stream == "out" else sys.stderr
                file.buffer.write(data)
                file.buffer.flush()
        return channel.wait()
    finally:
        channel.close()


def _feed(channel: "Channel") -> None:
    while data := os.read(0, 1 << 16):
        channel.send(data)
    channel.close_stdin()


@contextmanager
def _raw_terminal(tty: bool) -> Iterator[None]:
    """Let every key through to the other side while it lasts."""
    if not tty:
        yield
        return
    import termios
    import tty as terminal

    before = termios.tcgetattr(0)
    try:
        terminal.setraw(0)
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


@contextmanager
def _size_of_terminal(channel: "Channel", tty: bool) -> Iterator[None]:
    """Have the other side's terminal follow the size of ours while it lasts."""
    if not tty:
        yield
        return

    def follow(*_: object) -> None:
        size = os.get_terminal_size(0)
        channel.resize(size.lines, size.columns)

    before = signal.signal(signal.SIGWINCH, follow)
    try:
        follow()
        yield
    finally:
        signal.signal(signal.SIGWINCH, before)
