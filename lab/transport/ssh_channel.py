"""A command on a host, over one channel of its SSH connection."""

import contextlib
import re
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
BEGIN = b"lab:begin:"
"""Comes on both streams before the command: what is before it is a login shell's (~/.bashrc)."""
_SAY_BEGIN = "printf lab:%s: begin; printf lab:%s: begin >&2"  # other than BEGIN, for `set -x`
_NOT_LITERAL = re.compile(r"[\n!\\]")
"""What csh (`!`, the end of a line) and fish (a backslash) do not take for itself in quotes."""


class ConnectionLostError(LabError, OSError):
    """The connection to a host ended while something ran there."""


def remote_command(
    argv: Sequence[str],
    *,
    cwd: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    folder: str | None = None,
    path: str | None = None,
    begin: bool = True,
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
        begin: whether `BEGIN` comes before what it says.
    """
    quote = shlex.quote
    lines = [_SAY_BEGIN] if begin else []
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
    return f"exec /bin/sh -c {_one_word('; '.join(lines))}"


def _one_word(script: str) -> str:
    """A script for sh as one word of whatever shell: spelled out in octal where need be."""
    if not _NOT_LITERAL.search(script):
        return shlex.quote(script)
    spelled = re.sub(r"""[\n!\\'"$`]""", lambda found: f"\\0{ord(found[0]):03o}", script)
    return f"""'eval "$(printf %b "{spelled}")"'"""


def _at_home(path: str) -> str:
    return f'"$HOME"/{shlex.quote(path[2:])}' if path.startswith("~/") else shlex.quote(path)


class SshChannel:
    """Implements `Channel`."""

    def __init__(self, connection: SshConnection, command: str, *, tty: bool = False) -> None:
        """Start a command, as `remote_command` makes it; on a terminal, without `begin`.

        Raises:
            LabError: the connection has broken, or the host does not start anything.
        """
        self._connection = connection
        self._send_lock = threading.Lock()
        self._before: dict[StreamName, bytes] = {} if tty else {"out": b"", "err": b""}
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
            if not connection.is_connected:
                raise ConnectionLostError(connection.lost()) from error
            reason = str(error) or type(error).__name__
            raise LabError(f"{connection.place} starts no command: {reason}") from error

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
                yield from self._own("out", self._channel.recv(CHUNK))
            while self._channel.recv_stderr_ready():
                came = True
                yield from self._own("err", self._channel.recv_stderr(CHUNK))
            if over and not came:
                break
        for stream, data in self._before.items():  # no command has begun, and here may be why
            if data:
                yield stream, data
        self._check_connection()

    def _own(self, stream: StreamName, data: bytes) -> Iterator[tuple[StreamName, bytes]]:
        """What the command says, without what a login shell has said before it."""
        if stream in self._before:
            self._before[stream] += data
            _, begin, data = self._before[stream].partition(BEGIN)
            if not begin:
                return
            del self._before[stream]
        if data:
            yield stream, data

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
