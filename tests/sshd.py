"""A real SSH server on a loopback port, and a host behind it."""

import contextlib
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest

from lab.bench import sshd

CI = os.environ.get("CI") == "true"


class Sshd(sshd.Sshd):
    """A server whose connections can be cut."""

    def start(self) -> "Sshd":
        """See there; skips where this machine has none, and fails there under CI."""
        if sshd.find_sshd() is None and not CI:
            pytest.skip("no sshd: install openssh-server")
        super().start()
        return self

    def stop(self) -> None:
        """End the server and all connections."""
        self.cut()
        super().stop()

    def cut(self) -> None:
        """End all connections at once, as a broken line does; the server stays."""
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    if child.name().startswith("sshd"):
                        child.send_signal(signal.SIGKILL)


class SshPlace:
    """A folder that has all to reach a server: known hosts, a topology, what the host writes."""

    def __init__(self, folder: Path, server: Sshd) -> None:
        self.folder = folder
        self.server = server
        self.host = folder / "host"
        self.settings = folder / "settings"
        self.env = {"XDG_CONFIG_HOME": str(self.settings), "SSH_AUTH_SOCK": ""}
        self.known.parent.mkdir(parents=True)
        self.known.write_text(server.known_lines())
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
