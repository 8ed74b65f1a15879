"""A real SSH server on a loopback port, as this user: host keys, one user's key, no password."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lab.transport.ssh_lab import KeyPair

CI = os.environ.get("CI") == "true"
CONFIG = """\
{ports}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
MaxStartups 500
"""


def sshd_program() -> str:
    """Where it is; skips where there is none, and fails there under CI."""
    found = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")
    if found is None:
        assert not CI, "install openssh-server"
        pytest.skip("no sshd: install openssh-server")
    return found


class Sshd:
    """One server, on one port or more."""

    def __init__(self, folder: Path, ports: int = 1) -> None:
        self.folder = folder
        self.ports = free_ports(ports)
        self.user = KeyPair.new()
        self.identity = folder / "id_ed25519"
        write_private(self.identity, self.user.private)
        (folder / "authorized_keys").write_text(f"{self.user.public}\n")
        self.new_host_key()

    @property
    def port(self) -> int:
        """The first."""
        return self.ports[0]

    def new_host_key(self) -> None:
        """As if it had been installed anew; counts from the next `start` on."""
        self.key = KeyPair.new()
        write_private(self.folder / "host_key", self.key.private)

    def start(self) -> "Sshd":
        """Serve."""
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)
        ports = "\n".join(f"Port {port}" for port in self.ports)
        config = self.folder / "config"
        config.write_text(CONFIG.format(ports=ports, folder=self.folder))
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [sshd_program(), "-D", "-e", "-f", str(config)], stderr=log, start_new_session=True
            )
        give_up = time.monotonic() + 60
        while not self._greets():
            assert self._process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < give_up, "sshd does not greet"
            time.sleep(0.05)
        return self

    def _greets(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.ports[-1]), timeout=10) as connection,
        ):
            return connection.recv(4) == b"SSH-"
        return False

    def stop(self) -> None:
        """End the server and all connections."""
        self.cut()
        self._process.terminate()
        self._process.wait(30)

    def cut(self) -> None:
        """End all connections at once, as a broken line does; the server stays."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if child.name().startswith("sshd"):
                        child.send_signal(signal.SIGKILL)

    def known_line(self, port: int | None = None) -> str:
        """Its line for a file of known hosts."""
        return f"[127.0.0.1]:{port or self.port} {self.key.public}\n"


class SshPlace:
    """A folder that has all to reach a server: known hosts, a topology, what the host writes."""

    def __init__(self, folder: Path, server: Sshd) -> None:
        self.folder = folder
        self.server = server
        self.host = folder / "host"
        self.settings = folder / "settings"
        self.env = {"XDG_CONFIG_HOME": str(self.settings), "SSH_AUTH_SOCK": ""}
        self.known.parent.mkdir(parents=True)
        self.known.write_text("".join(server.known_line(port) for port in server.ports))
        self.ssh_config("")

    @property
    def known(self) -> Path:
        """Lab's own file of known hosts."""
        return self.settings / "multinode-lab" / "known_hosts"

    def ssh_config(self, text: str) -> None:
        """What is read in place of ~/.ssh/config."""
        none = f"UserKnownHostsFile {self.folder}/none\n"
        (self.folder / "ssh_config").write_text(f"{text}\nHost *\n    {none}")

    def topology(self, **ssh: object) -> str:
        """A topology of one host, as YAML; `ssh` are other options than the usual."""
        options: dict[str, object] = {
            "config": f"{self.folder}/ssh_config",
            "port": self.server.port,
            "identity_file": str(self.server.identity),
            "workdir": str(self.host),
            "python": sys.executable,
        } | ssh
        lines = "".join(f"  {k}: {v}\n" for k, v in options.items() if v is not None)
        return f"name: one\non: ssh\nnodes: [{{name: h0, address: 127.0.0.1}}]\nssh:\n{lines}"


def write_private(path: Path, data: bytes) -> None:
    """A key as ssh wants it: for its owner's eyes."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
        file.write(data)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on just now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()
