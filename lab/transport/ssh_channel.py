"""A command on a host, over one channel of its SSH connection."""

import contextlib
import select
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence

from paramiko import Channel as ParamikoChannel

from lab.channel import StreamName
from lab.errors import LabError
from lab.transport.ssh_connection import GONE, SshConnection

CHUNK = 1 << 16
UNKNOWN = 255
"""What ssh itself ends with where it cannot say how the command did."""


class ConnectionLostError(LabError, OSError):
    """The connection to a host ended while something ran there."""


def remote_command(
    argv: Sequence[str],
    *,
    cwd: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    folder: str | None = None,
    path: str | None = None,
) -> str:
    """What to send to a host to have `argv` run there, whatever its user's login shell is.

    A login shell (fish, csh) only has to take one quoted word apart; /bin/sh does the rest. That
    stays, as the parent, to tell of a signal as shells do: 128 + n.

    Where the command's own path or a folder of `cwd` begins with `~/`, that is the home there.

    Args:
        argv: the command.
        cwd: where it starts: the first of these folders that is there; none: the home.
        env: variables that it has beside the host's own. Others on the host can see them.
        folder: made before, if need be.
        path: put first into PYTHONPATH.
    """
    quote = shlex.quote
    lines = []
    if folder is not None:
        lines.append(f"mkdir -p -- {quote(folder)} || exit 1")
    if cwd:
        ways = [f"cd -- {_at_home(place)} 2>/dev/null" for place in cwd]
        missing = f"echo {quote(f'there is no folder {cwd[-1]}')} >&2"
        lines.append(" || ".join([*ways, f"{{ {missing}; exit 1; }}"]))
    if path is not None:
        lines.append(f'export PYTHONPATH={quote(path)}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    lines += [f"export {quote(f'{name}={value}')}" for name, value in (env or {}).items()]
    lines += [f"{_at_home(argv[0])} {shlex.join(argv[1:])}", "exit $?"]
    return f"exec /bin/sh -c {quote('; '.join(lines))}"


def _at_home(path: str) -> str:
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


class SshChannel:
    """Implements `Channel`."""

    def __init__(self, connection: SshConnection, command: str, *, tty: bool = False) -> None:
        """Start a command, as `remote_command` makes it.

        Raises:
            LabError: the connection has broken, or the host does not start anything.
        """
        self._connection = connection
        self._send_lock = threading.Lock()
        try:
            transport = connection.client.get_transport()
            assert transport is not None
            self._channel: ParamikoChannel = transport.open_session(
                timeout=connection.connect_timeout
            )
            if tty:
                self._channel.get_pty()
            self._wakeup = self._channel.fileno()  # before anything can have come
            self._channel.exec_command(command)
        except GONE as error:
            raise LabError(f"{connection.place} starts no command: {error}") from error

    def send(self, data: bytes) -> None:
        """See `Channel`."""
        with self._send_lock, contextlib.suppress(*GONE):  # it has closed it, or has gone
            self._channel.sendall(data)

    def close_stdin(self) -> None:
        """See `Channel`."""
        with self._send_lock, contextlib.suppress(*GONE):
            self._channel.shutdown_write()

    def resize(self, rows: int, columns: int) -> None:
        """See `Channel`."""
        with contextlib.suppress(*GONE):
            self._channel.resize_pty(columns, rows)

    def output(self) -> Iterator[tuple[StreamName, bytes]]:
        """See `Channel`.

        Raises:
            ConnectionLostError: after what came before.
        """
        poll = select.poll()
        poll.register(self._wakeup, select.POLLIN)
        while True:
            poll.poll()
            over = self._channel.closed or self._channel.eof_received  # before the last look
            came = False
            while self._channel.recv_ready():
                came = True
                yield "out", self._channel.recv(CHUNK)
            while self._channel.recv_stderr_ready():
                came = True
                yield "err", self._channel.recv_stderr(CHUNK)
            if over and not came:
                break
        self._check_connection()

    def _check_connection(self) -> None:
        """Raises ConnectionLostError where that is why the streams have ended."""
        if not self._channel.exit_status_ready() or self._channel.exit_status == -1:
            transport = self._connection.client.get_transport()
            if transport is None or not transport.is_active():
                raise ConnectionLostError(self._connection.lost())

    def wait(self, timeout: float | None = None) -> int:
        """See `Channel`."""
        if not self._channel.status_event.wait(timeout):
            raise TimeoutError(f"{self._connection.place}: still runs after {timeout} s")
        self._check_connection()
        code = self._channel.exit_status
        return code if code >= 0 else UNKNOWN

    def finish(self) -> tuple[int, bytes, bytes]:
        """End stdin, wait for the command's end: its exit status, stdout and stderr.

        Raises:
            ConnectionLostError: the connection was lost before.
        """
        self.close_stdin()
        said: dict[StreamName, bytearray] = {"out": bytearray(), "err": bytearray()}
        for stream, data in self.output():
            said[stream] += data
        code = self.wait()
        self.close()
        return code, bytes(said["out"]), bytes(said["err"])

    def close(self) -> None:
        """See `Channel`."""
        self.close_stdin()
        with contextlib.suppress(*GONE):
            self._channel.close()
