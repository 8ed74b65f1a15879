"""Who we are to an SSH server: the agent's keys, key files, and a password that somebody types.

The key that a topology names comes first. Then keys come in the order of OpenSSH (sshconnect2.c,
pubkey_prepare): those of the agent that ~/.ssh/config names, the agent's others, then files. Order
matters: a server hears a few (MaxAuthTries) and hangs up.
"""

import base64
import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator, Mapping
from getpass import getpass
from pathlib import Path
from typing import Any

from paramiko import Agent, ECDSAKey, Ed25519Key, PKey, RSAKey, SSHException, Transport
from paramiko.agent import AgentSSH
from paramiko.auth_strategy import (
    AuthSource,
    AuthStrategy,
    InMemoryPrivateKey,
    OnDiskPrivateKey,
    Password,
)
from paramiko.ssh_exception import BadAuthenticationType, PasswordRequiredException

DEFAULT_KEYS = ("id_rsa", "id_ecdsa", "id_ed25519")
PROMPTED = ("password", "keyboard-interactive")
"""Methods in which somebody types."""

_terminal = threading.Lock()
"""Hosts are reached side by side, and ask one after another."""
_keys: dict[Path, PKey | None] = {}
"""Key files that have been read, so that a passphrase is asked for once. None: no key in it."""
_locked: set[Path] = set()
"""Those of them that hold a key which nobody has opened."""


class Locked(AuthSource):
    """A key file that has not been opened, for the list of what was tried."""

    def __init__(self, username: str, path: Path) -> None:
        super().__init__(username)
        self.path = path

    def authenticate(self, transport: Transport) -> Any:
        """See `AuthSource`: it cannot."""
        raise SSHException(
            f"{self.path} needs its passphrase: ssh-add it, or run lab on a terminal"
        )


class SshAuth(AuthStrategy):
    """Tries one way after another on one connection; implements Fabric's `strategy_class`."""

    def __init__(self, ssh_config: Mapping[str, Any], fabric_config: Any, username: str) -> None:
        """`ssh_config` is what ~/.ssh/config says of this host."""
        super().__init__(ssh_config)  # type: ignore[arg-type]  # what Fabric gives is one host's
        self._username = username
        self._chosen = [Path(path) for path in fabric_config.authentication.identities]
        self._configured = [Path(path) for path in ssh_config.get("identityfile", [])]
        self._only_files = ssh_config.get("identitiesonly") == "yes"
        self._agent = ssh_config.get("identityagent")

    def authenticate(self, transport: Transport) -> Any:
        """See `AuthStrategy`."""
        self._transport = transport
        return super().authenticate(transport)

    def get_sources(self) -> Iterator[AuthSource]:
        """See `AuthStrategy`."""
        for source in self._key_sources():
            if not self._transport.is_active():  # it has hung up
                return
            yield source
        if sys.stdin is not None and sys.stdin.isatty() and self._server_takes_a_password():
            yield Password(self._username, self._ask)

    def _key_sources(self) -> Iterator[AuthSource]:
        """Files are read when their turn comes: one whose key the agent has needs no passphrase."""
        agent = open_agent(self._agent)
        offered: set[bytes] = set()
        try:
            keys = {key.asbytes(): key for key in agent.get_keys()}
            named = {path: public_half(path) for path in [*self._chosen, *self._configured]}
            for path in self._chosen:
                yield from self._of_file(path, keys, offered)
            first = [blob for blob in named.values() if blob is not None and blob in keys]
            for blob in [*first, *(() if self._only_files else keys)]:
                if blob not in offered:
                    offered.add(blob)
                    yield InMemoryPrivateKey(self._username, keys[blob])
            for path in named or [Path.home() / ".ssh" / name for name in DEFAULT_KEYS]:
                yield from self._of_file(path, keys, offered)
        finally:
            agent._close()

    def _of_file(
        self, path: Path, agents: Mapping[bytes, PKey], offered: set[bytes]
    ) -> Iterator[AuthSource]:
        """The key of a file, from the agent where that has it, unless it was offered before."""
        blob = public_half(path)
        if blob is not None and blob in agents:
            if blob not in offered:
                offered.add(blob)
                yield InMemoryPrivateKey(self._username, agents[blob])
            return
        own = read_key(path)
        if own is None and path in _locked:
            yield Locked(self._username, path)
        if own is not None and own.asbytes() not in offered:
            offered.add(own.asbytes())
            yield OnDiskPrivateKey(self._username, "ssh-config", path, own)

    def _server_takes_a_password(self) -> bool:
        try:
            self._transport.auth_none(self._username)
        except BadAuthenticationType as error:
            return any(method in PROMPTED for method in error.allowed_types)
        except SSHException:
            return False
        return False

    def _ask(self) -> str:
        host = self._transport.getpeername()[0]
        with _terminal:
            return getpass(f"password of {self._username} on {host}: ")


def open_agent(where: str | None) -> Any:
    """The agent that `IdentityAgent` names (a socket, `$VARIABLE`, `none`); None: the usual one."""
    if where is None or where == "SSH_AUTH_SOCK":
        return Agent()
    agent: Any = AgentSSH()
    path = os.environ.get(where[1:], "") if where.startswith("$") else where
    if path and path != "none":
        with contextlib.suppress(OSError, SSHException):  # as without one
            conn = socket.socket(socket.AF_UNIX)
            conn.connect(str(Path(path).expanduser()))
            agent._connect(conn)
    return agent


def public_half(path: Path) -> bytes | None:
    """The public key in a file or beside it, as the wire has it; None: there is none."""
    for place in (path, Path(f"{path}.pub")):  # of a key that only an agent has, there is no more
        with contextlib.suppress(OSError, ValueError):
            kind, blob, *_ = place.read_text().split()
            if not kind.startswith("-"):
                return base64.b64decode(blob, validate=True)
    return None


def read_key(path: Path) -> PKey | None:
    """The private key in a file; None where there is none that we can use.

    An encrypted one is opened with a passphrase that is asked for, once, where there is a terminal.
    """
    with _terminal:
        if path not in _keys:
            _keys[path] = _read_key(path)
        return _keys[path]


def _read_key(path: Path) -> PKey | None:
    try:
        return PKey.from_path(path)
    except (PasswordRequiredException, TypeError):  # TypeError: as the library below says it
        pass
    except (OSError, ValueError, SSHException):
        return None
    _locked.add(path)
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    passphrase = getpass(f"passphrase of {path}: ")
    for kind in (RSAKey, ECDSAKey, Ed25519Key):
        with contextlib.suppress(OSError, ValueError, SSHException):
            key = kind.from_private_key_file(str(path), passphrase)
            _locked.discard(path)
            return key
    return None
