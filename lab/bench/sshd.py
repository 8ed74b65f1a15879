"""A real SSH server on loopback ports, as this user: for what is measured, and for tests."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from lab.errors import LabError
from lab.transport.ssh_keys import KeyPair, write_private

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
CLIENT = """\
Host node{number}
    HostName 127.0.0.1
    Port {port}
    IdentityFile {key}
    UserKnownHostsFile {folder}/known_hosts

"""
PORTS = 16
"""Of one server: as many as it can take (sshd.c, MAX_LISTEN_SOCKS)."""
START_PATIENCE = 60.0
"""Seconds for it to greet."""


def find_sshd() -> str | None:
    """The program; None: this machine has none."""
    return shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin")


class Sshd:
    """One server, on one port or more."""

    def __init__(self, folder: Path, ports: int = 1, *, own_homes: bool = False) -> None:
        """`folder` gets its keys and its log.

        `own_homes`: each port is a host of its own, whose home is a folder there.
        """
        self.folder = folder
        self._own_homes = own_homes
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
        """Serve.

        Raises:
            LabError: there is no sshd here, or it does not start.
        """
        program = find_sshd()
        if program is None:
            raise LabError("there is no sshd on this machine: install openssh-server")
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(exist_ok=True)  # root's sshd wants it
        ports = "\n".join(f"Port {port}" for port in self.ports)
        config = self.folder / "config"
        homes = self._homes() if self._own_homes else ""
        config.write_text(CONFIG.format(ports=ports, folder=self.folder) + homes)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [program, "-D", "-e", "-f", str(config)], stderr=log, start_new_session=True
            )
        give_up = time.monotonic() + START_PATIENCE
        while not self._greets():
            if self.process.poll() is not None or time.monotonic() > give_up:
                raise LabError(f"sshd does not start: {(self.folder / 'log').read_text()}")
            time.sleep(0.05)
        return self

    def _homes(self) -> str:
        blocks = []
        for number, port in enumerate(self.ports):
            home = self.folder / f"home{number}"
            home.mkdir(exist_ok=True)
            blocks.append(f'Match LocalPort {port}\n    SetEnv "HOME={home}"\n')
        return "".join(blocks)

    def _greets(self) -> bool:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.ports[-1]), timeout=10) as connection,
        ):
            return connection.recv(4) == b"SSH-"
        return False

    def stop(self) -> None:
        """End the server; connections that are open stay."""
        self.process.terminate()
        self.process.wait(30)

    def known_lines(self) -> str:
        """Its lines for a file of known hosts."""
        return "".join(f"[127.0.0.1]:{port} {self.key.public}\n" for port in self.ports)


def write_client(folder: Path, servers: Sequence[Sshd]) -> None:
    """Write `ssh_config` and `known_hosts` for those servers; their ports are node0, node1, ..."""
    endpoints = [(server, port) for server in servers for port in server.ports]
    hosts = [
        CLIENT.format(number=number, port=port, key=server.identity, folder=folder)
        for number, (server, port) in enumerate(endpoints)
    ]
    (folder / "ssh_config").write_text("".join(hosts))
    (folder / "known_hosts").write_text("".join(map(Sshd.known_lines, servers)))


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on just now."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
