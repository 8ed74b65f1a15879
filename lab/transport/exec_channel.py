"""A command in a container, over the one connection that `docker exec` uses.

The engine answers the start of an exec by turning the HTTP connection into the command's streams:
what we write is its stdin, what we read is its stdout and stderr, in frames. When this process
dies the connection goes with it, and the engine ends the command's stdin.
"""

import contextlib
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lab.channel import StreamName
from lab.errors import LabError
from lab.transport.containers import ENTRYPOINT
from lab.transport.engine import EngineStoppedError

if TYPE_CHECKING:
    from docker import DockerClient

CHUNK = 1 << 16
KILLED = 137
_HEADER = struct.Struct(">BxxxL")
_STREAMS: dict[int, StreamName] = {1: "out", 2: "err"}


class FrameParser:
    """Docker's multiplexed stream: 8 bytes with the stream's number and a length, then the data.

    Gives data on as it comes, also of frames that have not come whole: a frame may be large.
    """

    def __init__(self) -> None:
        self._header = b""
        self._stream: StreamName = "out"
        self._left = 0

    def feed(self, data: bytes) -> Iterator[tuple[StreamName, bytes]]:
        """The pieces in a chunk, which may begin and end anywhere."""
        at = 0
        while at < len(data):
            if self._left:
                piece = data[at : at + self._left]
                self._left -= len(piece)
                yield self._stream, piece
            else:
                piece = data[at : at + _HEADER.size - len(self._header)]
                self._header += piece
                if len(self._header) == _HEADER.size:
                    number, self._left = _HEADER.unpack(self._header)
                    self._stream = _STREAMS.get(number, "out")
                    self._header = b""
            at += len(piece)


class DockerChannel:
    """A command on a node that is a container; implements `Channel`.

    What the reader of `output` does not take waits in the sockets, and then in the command: nothing
    is kept here. `send` and `close_stdin` may be called from any thread.
    """

    def __init__(
        self,
        client: "DockerClient",
        container: str,
        argv: Sequence[str],
        *,
        cwd: str,
        env: Mapping[str, str],
        tty: bool,
    ) -> None:
        """Start `argv` in a container, behind the node's entrypoint.

        Raises:
            LabError: the container is not there or does not run.
        """
        from docker.errors import APIError

        self._api: Any = client.api
        self._container = container
        self._tty = tty
        self._token = secrets.token_hex(8)
        self._code: int | None = None
        self._ended = threading.Event()
        self._send_lock = threading.Lock()
        self._stdin_open = True
        try:
            created = self._api.exec_create(
                container,
                [ENTRYPOINT, *argv],
                stdin=True,
                tty=tty,
                user="0:0",
                workdir=cwd,
                environment={**env, "LAB_EXEC": self._token},
            )
            self._exec: str = created["Id"]
            self._hijack()
        except APIError as error:
            raise LabError(f"{container}: {error.explanation or error}") from error

    def _hijack(self) -> None:
        """Start the exec and keep the connection's two directions.

        As the SDK's `exec_start(socket=True)`, but that hands out the bare socket: what came in the
        same packet as the HTTP header has been read into the response's buffer by then, and would
        be lost.
        """
        api = self._api
        self._response = api._post_json(
            api._url("/exec/{0}/start", self._exec),
            headers={"Connection": "Upgrade", "Upgrade": "tcp"},
            data={"Tty": self._tty, "Detach": False},
            stream=True,
        )
        api._raise_for_status(self._response)
        self._reader = self._response.raw._fp.fp
        # Over ssh:// the stream is a process; its socket-like object hangs on the reader.
        over_ssh = getattr(self._reader, "channel", None)
        self._socket: Any = over_ssh or self._reader.raw._sock
        if over_ssh is None:
            self._socket.settimeout(None)

    def send(self, data: bytes) -> None:
        """See `Channel`."""
        with self._send_lock, contextlib.suppress(OSError, ValueError):  # it has gone
            if self._stdin_open:
                self._socket.sendall(data)

    def close_stdin(self) -> None:
        """See `Channel`."""
        with self._send_lock:
            if not self._stdin_open:
                return
            self._stdin_open = False
            with contextlib.suppress(OSError, ValueError):
                self._shutdown(socket.SHUT_WR)

    def _shutdown(self, how: int) -> None:
        process = getattr(self._socket, "proc", None)
        if process is not None:  # over ssh://
            process.stdin.close()
            if how == socket.SHUT_RDWR:
                process.terminate()
        else:
            # Not the TLS socket's own method, which would end the decryption of what still comes.
            socket.socket.shutdown(self._socket, how)

    def output(self) -> Iterator[tuple[StreamName, bytes]]:
        """See `Channel`. With a terminal everything is `out`."""
        parser = FrameParser()
        try:
            while data := self._read():
                if self._tty:
                    yield "out", data
                else:
                    yield from parser.feed(data)
        finally:
            self._ended.set()

    def _read(self) -> bytes:
        try:
            data: bytes = self._reader.read1(CHUNK)
        except (OSError, ValueError):  # the engine or `close` cut the connection
            return b""
        return data

    def wait(self, timeout: float | None = None) -> int:
        """See `Channel`."""
        give_up = None if timeout is None else time.monotonic() + timeout
        pause = 0.005
        while (code := self._exit_code()) is None:
            left = pause if give_up is None else give_up - time.monotonic()
            if left <= 0:
                raise TimeoutError(f"{self._container}: still runs after {timeout} s")
            if self._ended.is_set():
                time.sleep(min(pause, left))
            else:
                self._ended.wait(min(pause, left))
            pause = min(pause * 1.5, 0.25)
        return code

    def _exit_code(self) -> int | None:
        from docker.errors import NotFound

        if self._code is None:
            try:
                state = self._api.exec_inspect(self._exec)
            except NotFound:  # the container has been removed, and the command with it
                self._code = KILLED
            else:
                self._code = None if state["Running"] else state["ExitCode"]
        return self._code

    def resize(self, rows: int, columns: int) -> None:
        """See `Channel`."""
        from docker.errors import APIError

        with contextlib.suppress(APIError, EngineStoppedError):  # it ends just now
            self._api.exec_resize(self._exec, height=rows, width=columns)

    def close(self) -> None:
        """See `Channel`. A command that still runs is ended: TERM, and KILL after five seconds."""
        from docker.errors import APIError

        self.close_stdin()
        with contextlib.suppress(OSError, ValueError):
            self._shutdown(socket.SHUT_RDWR)
        self._response.close()
        with contextlib.suppress(APIError, EngineStoppedError):
            if self._exit_code() is None:
                ending = self._api.exec_create(
                    self._container, [ENTRYPOINT, "--end", self._token], user="0:0"
                )
                self._api.exec_start(ending["Id"])
