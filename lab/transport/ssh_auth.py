"""Who we are to an SSH server: the agent's keys, key files, and a password that somebody types.

Keys come in the order of OpenSSH (sshconnect2.c, pubkey_prepare): the agent's first, then files.
"""

import base64
import contextlib
import sys
import threading
from collections.abc import Iterator, Mapping
from getpass import getpass
from pathlib import Path
from typing import Any

from paramiko import Agent, ECDSAKey, Ed25519Key, PKey, RSAKey, SSHException, Transport
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


class SshAuth(AuthStrategy):
    """Tries one way after another on one connection; implements Fabric's `strategy_class`."""

    def __init__(self, ssh_config: Mapping[str, Any], fabric_config: Any, username: str) -> None:
        """`ssh_config` is what ~/.ssh/config says of this host."""
        super().__init__(ssh_config)  # type: ignore[arg-type]  # what Fabric gives is one host's
        self._username = username
        self._chosen = [Path(path) for path in fabric_config.authentication.identities]
        self._configured = [Path(path) for path in ssh_config.get("identityfile", [])]
        self._only_files = ssh_config.get("identitiesonly") == "yes"
        self._allowed: tuple[str, ...] = ()

    def authenticate(self, transport: Transport) -> Any:
        """See `AuthStrategy`."""
        self._transport = transport
        return super().authenticate(transport)

    def get_sources(self) -> Iterator[AuthSource]:
        """See `AuthStrategy`."""
        yield from self._key_sources()
        if sys.stdin is not None and sys.stdin.isatty() and self._server_takes_a_password():
            yield Password(self._username, self._ask)

    def _key_sources(self) -> Iterator[AuthSource]:
        """Files are read when their turn comes: one whose key the agent has needs no passphrase."""
        files = [*self._chosen, *self._configured]
        offered: set[bytes] = set()
        agent = Agent()
        try:
            wanted = {public for path in files if (public := public_half(path)) is not None}
            for key in agent.get_keys():
                if key.asbytes() in wanted or not self._only_files:
                    offered.add(key.asbytes())
                    yield InMemoryPrivateKey(self._username, key)
            for path in files or [Path.home() / ".ssh" / name for name in DEFAULT_KEYS]:
                if public_half(path) in offered:
                    continue
                own = read_key(path)
                if own is not None and own.asbytes() not in offered:
                    yield OnDiskPrivateKey(self._username, "ssh-config", path, own)
        finally:
            agent.close()

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


def public_half(path: Path) -> bytes | None:
    """The public key that stands beside a private one, as the wire has it; None: none does."""
    try:
        _, blob, *_ = Path(f"{path}.pub").read_text().split()
        return base64.b64decode(blob, validate=True)
    except (OSError, ValueError):
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
    if sys.stdin is None or not sys.stdin.isatty():
        return None
    passphrase = getpass(f"passphrase of {path}: ")
    for kind in (RSAKey, ECDSAKey, Ed25519Key):
        with contextlib.suppress(OSError, ValueError, SSHException):
            return kind.from_private_key_file(str(path), passphrase)
    return None
