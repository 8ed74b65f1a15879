"""Has py-spy read the stacks of one process, while whoever waits for it does other things."""

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Callable

from lab.node import stacks
from lab.node.pipes import CHUNK


class StackReader:
    """One py-spy, from its start until all that it says has come."""

    def __init__(
        self, selector: selectors.BaseSelector, pid: int, on_end: Callable[[bytes], None]
    ) -> None:
        """`on_end` gets what it has said, stderr with stdout, unless it is closed before.

        Raises:
            RuntimeError: it does not run, and why.
        """
        self._selector = selector
        self._on_end = on_end
        self._received = bytearray()
        argv = stacks.command(pid)
        if argv is None:
            raise RuntimeError(stacks.MISSING)
        try:
            self._program = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=stacks.environment(),
            )
        except OSError as error:
            raise RuntimeError(f"py-spy: {error.strerror}") from error
        self._program.returncode = 0  # the agent reaps its children itself; Popen must not try
        assert self._program.stdout is not None
        self._output = self._program.stdout
        os.set_blocking(self._output.fileno(), False)
        selector.register(self._output, selectors.EVENT_READ, self._on_output)

    def kill(self) -> None:
        """End it: it has taken too long. What has come counts."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._program.pid, signal.SIGKILL)
        self._end()

    def close(self) -> None:
        """Nobody wants to know any more."""
        if not self._output.closed:
            self._selector.unregister(self._output)
            self._output.close()

    def _on_output(self) -> None:
        if self._output.closed:
            return  # since select
        try:
            data = os.read(self._output.fileno(), CHUNK)
        except BlockingIOError:
            return
        self._received += data
        if not data:
            self._end()

    def _end(self) -> None:
        self.close()
        self._on_end(bytes(self._received))
