"""The probe: a thread that tells whoever asks what its process does, also while it hangs.

It listens on a local socket named after the pid, so that it can be asked however the rank was
started. A question is one line, `pulse` or `state`; the answer is one line of JSON (`state.py`),
and the end of the connection. Only this user and root are answered.

The script must not notice: the thread is none of `threading`'s, takes no signals, is not there
while the process forks, and imports no module of the standard library that a file beside the script
could stand for.
"""

import _signal  # type: ignore[import-not-found]  # nobody has written down its types
import _socket
import _thread
import contextlib
import json
import os
import sys
import time
from typing import Any

from .threads import begin

PATIENCE = 1.0
"""Seconds for whoever has connected to ask, and to take the answer."""
LONGEST_QUESTION = 64
BACKLOG = 16
STOP = b"stop"


def address(pid: int) -> str:
    """Where a process listens: on Linux a name that goes with it, elsewhere a path."""
    if sys.platform == "linux":
        return f"\0multinode-lab-probe-{pid}"
    return f"/tmp/multinode-lab-{os.getuid()}/probe-{pid}"  # noqa: S108 - the folder is ours alone


def remove(pid: int) -> None:
    """Remove what the probe of a process that was killed has left."""
    if sys.platform != "linux":
        with contextlib.suppress(OSError):
            os.unlink(address(pid))  # noqa: PTH108 - pathlib is not for a name of this kind


class Probe:
    """The listener of one process. It is never closed: it goes with the process."""

    def __init__(self, start_folder: str) -> None:
        """`start_folder`: files below it are told of without it.

        Raises:
            OSError: this process cannot listen.
        """
        self._start_folder = start_folder
        self._pid = os.getpid()
        self._address = address(self._pid)
        if sys.platform != "linux":
            self._make_folder()
        self._listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        self._listener.bind(self._address)
        self._listener.listen(BACKLOG)
        self._runs = _thread.allocate_lock()
        """Held by the thread."""
        self._thread: int | None = None
        self._start()
        os.register_at_fork(
            before=self._stop, after_in_parent=self._start, after_in_child=self._close
        )

    def _make_folder(self) -> None:
        folder = os.path.dirname(self._address)  # noqa: PTH120 - as above
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700)  # noqa: PTH102
        if os.stat(folder, follow_symlinks=False).st_uid != os.getuid():  # noqa: PTH116
            raise PermissionError(f"{folder} belongs to another user")
        remove(self._pid)  # of a process that had this pid before

    def _start(self) -> None:
        if self._pid == os.getpid() and self._runs.acquire(blocking=False):
            try:
                begin(self._serve)
            except RuntimeError:  # there can be no more threads
                self._runs.release()

    def _stop(self) -> None:
        """Before a fork: who forks alone, as without us, is neither warned nor in danger."""
        if self._pid != os.getpid() or not self._runs.locked():
            return
        with contextlib.suppress(OSError):
            with contextlib.closing(
                _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
            ) as connection:
                connection.connect(self._address)
                connection.send(STOP + b"\n")
            if self._runs.acquire(timeout=2 * PATIENCE):
                self._runs.release()
                # It has let go of the lock with its last word but one.
                give_up = time.monotonic() + PATIENCE
                while os.path.exists(f"/proc/self/task/{self._thread}"):  # noqa: PTH110
                    if time.monotonic() > give_up:
                        return
                    time.sleep(0)

    def _close(self) -> None:
        """In a fork: the name is the parent's."""
        self._listener.close()

    # The thread

    def _serve(self) -> None:
        try:
            self._thread = _thread.get_native_id()
            _signal.pthread_sigmask(_signal.SIG_BLOCK, _signal.valid_signals())
            while self._is_ours and self._answer_one():
                pass
        except OSError:  # the script has closed all descriptors
            pass
        finally:
            self._runs.release()

    @property
    def _is_ours(self) -> bool:
        """Whether the script has not closed the descriptor, and got a socket of its own there."""
        return self._listener.getsockname() in (self._address, self._address.encode())

    def _answer_one(self) -> bool:
        """Serve the next who comes; False when that is ourselves, who want the thread to end."""
        listener: Any = self._listener  # its types leave out what `socket.socket` calls
        fd, _ = listener._accept()
        connection = _socket.socket(fileno=fd)
        try:
            connection.settimeout(PATIENCE)
            if not _may_ask(connection):
                return True
            question = b""
            while not question.endswith(b"\n") and len(question) < LONGEST_QUESTION:
                data = connection.recv(LONGEST_QUESTION)
                if not data:
                    return True
                question += data
            if question.strip() == STOP:
                return False
            from .state import pulse, state  # at the first question: no rank starts later for it

            tell = state if question.strip() == b"state" else pulse
            connection.sendall(json.dumps(tell(self._start_folder)).encode() + b"\n")
        except Exception:  # noqa: BLE001, S110 - it has gone, is too slow, or torch is half imported
            pass
        finally:
            connection.close()
        return True


def _may_ask(connection: _socket.socket) -> bool:
    """Whether the other end is this user's or root's (elsewhere the folder sees to that)."""
    if sys.platform != "linux":
        return True
    credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)
    return int.from_bytes(credentials[4:8], sys.byteorder) in (os.getuid(), 0)
