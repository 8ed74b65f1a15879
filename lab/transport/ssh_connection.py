"""A connection to one host: Fabric's, with host keys checked, keep-alives, and errors in words.

~/.ssh/config is Fabric's to read (HostName, User, Port, IdentityFile, ProxyJump, ProxyCommand,
ConnectTimeout); what is changed here is what it would trust, and what it says.
"""

import base64
import hashlib
import logging
import re
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple, NoReturn

from paramiko import PKey, RejectPolicy, SSHClient, SSHException
from paramiko.auth_strategy import AuthFailure, InMemoryPrivateKey, Password
from paramiko.ssh_exception import (
    BadHostKeyException,
    ChannelException,
    NoValidConnectionsError,
)

from lab.errors import LabError, UsageError
from lab.transport.known_hosts import SYSTEM_FILE, KnownHosts, entry_name, private_file
from lab.transport.light_fabric import Connection
from lab.transport.ssh_settings import SshSettings
from lab.transport.ssh_socket import QuickTransport, give_up_on_silence

TIMEOUT = 10
"""Seconds for a host to answer, unless ~/.ssh/config says (ConnectTimeout)."""
NO_GREETING = ("Error reading SSH protocol banner", "No existing session")
"""How paramiko says that; the second where the greeting was given up a moment before."""
GONE = (OSError, EOFError, SSHException)
"""What paramiko raises, one or the other, where there is no connection or it has ended."""
MANY = 3
"""Keys of an agent that are not named one by one any more."""
_TARGET = re.compile(r"(?:ssh://)?(?:(.*)@)?(\[.*\]|.*?:.*:.*?|.*?)(?::(\d+))?/?")

# Its warnings with tracebacks would go to the terminal; what they are about is said by `explain`.
logging.getLogger("paramiko").addHandler(logging.NullHandler())
logging.getLogger("paramiko").propagate = False


class UnknownHostKeyError(SSHException):
    """The host's key is in no file of known hosts."""

    def __init__(self, name: str, key: PKey) -> None:
        super().__init__(f"the host key of {name} is not known")
        self.name = name
        self.key = key


class Refuse(RejectPolicy):
    """paramiko's RejectPolicy, which also says which key it refused."""

    def missing_host_key(self, client: SSHClient, hostname: str, key: PKey) -> NoReturn:
        """See paramiko's `MissingHostKeyPolicy`."""
        raise UnknownHostKeyError(hostname, key)


def fingerprint(key: PKey) -> str:
    """As ssh-keygen(1) prints it: SHA256 in base64."""
    digest = hashlib.sha256(key.asbytes()).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


class HostKey(NamedTuple):
    """What a host showed for a key."""

    key: PKey
    known_in: Path | None
    """The file that has it already."""
    others: Sequence[tuple[Path, PKey]]
    """Keys of the same kind that are known of this host, each with its file."""


class SshConnection(Connection):  # type: ignore[misc]  # Fabric carries no annotations
    """Fabric's `Connection` to a host, or to one on the way there (ProxyJump)."""

    def __init__(
        self,
        host: str,
        settings: SshSettings,
        *,
        called: str | None = None,
        way: Sequence[str] = (),
        **own: Any,
    ) -> None:
        """Nothing is connected yet.

        Args:
            host: what to look up in ~/.ssh/config, and else to connect to.
            settings: of all connections of a topology.
            called: the node that it is, for messages.
            way: hosts that lead to this one already, so that no ring of jumps is followed.
            own: arguments of Fabric's, which win over the settings.
        """
        self._set(settings=settings, way=(*way, host), called=called or host)
        self._set(opening=Lock(), attempts=0, failure=None)
        given = {"user": settings.user, "port": settings.port} | own
        super().__init__(host, config=settings.config, **given)
        self.connect_timeout: int = self.connect_timeout or TIMEOUT
        self.connect_kwargs: dict[str, Any] = {
            "banner_timeout": self.connect_timeout,
            "channel_timeout": self.connect_timeout,
            "transport_factory": QuickTransport,
        }
        self.client.set_missing_host_key_policy(Refuse())

    def get_gateway(self) -> Any:
        """As Fabric's, but the hosts on the way are of this class, and checked as this one is."""
        jump = self.ssh_config.get("proxyjump")
        if jump is None or jump.lower() == "none":
            return self.ssh_config.get("proxycommand")
        gateway, there = None, ""
        for hop in jump.split(","):
            user, name, port = target(hop)
            if name in self.way:
                raise UsageError(f"ProxyJump leads from {self.way[-1]} back to {name}")
            there += f"{hop.strip()},"
            known = self.settings.gateways
            if there not in known:
                # The topology's user and port are for nodes.
                plain = SshSettings(user, port, self.settings.config, known)
                own: dict[str, Any] = {} if gateway is None else {"gateway": gateway}
                known[there] = SshConnection(name, plain, way=self.way, **own)
            gateway = known[there]
        return gateway

    @property
    def place(self) -> str:
        """`user@host:port`, as messages name it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.user}@{host}:{self.port}"

    @property
    def known_name(self) -> str:
        """The host as files of known hosts name it."""
        alias: str | None = self.ssh_config.get("hostkeyalias")
        return alias or entry_name(self.host, self.port)

    def known_hosts(self) -> KnownHosts:
        """The keys that are known: lab's own, then those that ~/.ssh/config says to take."""
        users = self.ssh_config.get("userknownhostsfile", "~/.ssh/known_hosts").split()
        system = self.ssh_config.get("globalknownhostsfile", str(SYSTEM_FILE)).split()
        paths = [Path(path).expanduser() for path in (*users, *system) if path != "none"]
        return KnownHosts([private_file(), *paths])

    def open(self) -> None:
        """Connect, unless connected already; of several threads one does, for all of them.

        Raises:
            LabError: it cannot be reached; says which user, host and port, and why.
        """
        attempts = self.attempts
        with self.opening:
            if self.is_connected:
                return
            if self.attempts != attempts and self.failure is not None:
                raise self.failure  # of who has tried while we waited
            self._set(failure=None)
            try:
                self._open()
            except LabError as error:
                self._set(failure=error)
                raise
            finally:
                self._set(attempts=attempts + 1)

    def _open(self) -> None:
        known = self.known_hosts()
        try:
            try:
                self._expect(key for _, key in known.keys(self.known_name))
                super().open()
            except BadHostKeyException as error:
                if known.file_of(self.known_name, error.key) is None:
                    raise
                self._expect([error.key])  # one of several that are known of it
                super().open()
        except GONE as error:
            self.client.close()
            raise LabError(self.explain(error)) from error
        transport = self.client.get_transport()
        assert isinstance(transport, QuickTransport)
        transport.keep_alive()
        give_up_on_silence(transport.sock)

    def _expect(self, keys: Iterable[PKey]) -> None:
        """Have paramiko take these keys for the host's: the first of each kind."""
        expected = self.client.get_host_keys()
        expected.clear()
        name = entry_name(self.host, self.port)  # as paramiko asks, which knows no alias
        for key in keys:
            if key.get_name() not in (expected.lookup(name) or {}):
                expected.add(name, key.get_name(), key)

    def offered_key(self) -> "HostKey":
        """The key that the host shows; it is not logged in to.

        Raises:
            LabError: it cannot be reached.
        """
        self._expect([])
        try:
            super().open()
        except UnknownHostKeyError as error:
            known = list(self.known_hosts().keys(self.known_name))
            others = [(p, k) for p, k in known if k.get_name() == error.key.get_name()]
            return HostKey(error.key, next((p for p, k in known if k == error.key), None), others)
        except GONE as error:
            raise LabError(self.explain(error)) from error
        finally:
            self.client.close()
        raise AssertionError("no key was expected, and one was accepted")

    def lost(self) -> str:
        """That it broke, and why, in one line."""
        transport = self.client.get_transport()
        error = None if transport is None else transport.get_exception()
        reason = "" if error is None or not str(error) else f": {self._reason(error)}"
        return f"the connection to {self.place} was lost{reason}"

    def explain(self, error: BaseException) -> str:
        """Why it could not be reached, and the cure, in one line."""
        words = f"no connection to {self.place}: {self._reason(error)}"
        if isinstance(self.gateway, str):
            words += f" (ProxyCommand {self.gateway})"
        return words

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, BadHostKeyException):
            where = self.known_hosts().file_of(self.known_name, error.expected_key)
            return (
                f"ITS HOST KEY HAS CHANGED: it offers {fingerprint(error.key)}, and {where} has "
                f"{fingerprint(error.expected_key)}. Somebody may be listening in, or the host has "
                "been installed anew: ask its owner for the fingerprint, then "
                f"lab trust --replace {self.called}"
            )
        if isinstance(error, UnknownHostKeyError):
            return (
                f"its host key is not known ({fingerprint(error.key)}): compare that, then "
                f"lab trust {self.called}"
            )
        if isinstance(error, AuthFailure):
            return self._refusal(error)
        if isinstance(error, socket.gaierror):
            return f"the name cannot be resolved ({error.strerror})"
        if isinstance(error, NoValidConnectionsError):
            causes = {getattr(cause, "strerror", str(cause)) for cause in error.errors.values()}
            return f"{', '.join(sorted(causes))}: is the host up, and is it the port?"
        if isinstance(error, ChannelException):
            return f"{self.gateway.place} cannot reach it ({error.text}): is it up, is it the port?"
        if isinstance(error, TimeoutError):
            return f"no answer in {self.connect_timeout} s: is the host up, is it the address?"
        if isinstance(error, EOFError) or isinstance(error.__context__, EOFError):
            return "it hung up before a login: is it the port, and has it room (MaxStartups)?"
        if any(words in str(error) for words in NO_GREETING):
            return f"no SSH server greets there in {self.connect_timeout} s: is it the port?"
        return getattr(error, "strerror", None) or str(error) or type(error).__name__

    def _refusal(self, error: AuthFailure) -> str:
        tried = [str(a.source.path) for a in error.result if hasattr(a.source, "path")]
        agents = [a.source.pkey for a in error.result if isinstance(a.source, InMemoryPrivateKey)]
        if len(agents) > MANY:
            tried.insert(0, f"{len(agents)} keys of the agent")
        else:
            tried[:0] = [f"the agent's {key.get_name()} {fingerprint(key)}" for key in agents]
        tried += ["password" for attempt in error.result if isinstance(attempt.source, Password)]
        said = {str(attempt.result).rstrip(".") for attempt in error.result}
        keys = f" ({', '.join(tried)})" if tried else ": there is no key to try"
        return (
            f"permission denied{keys}; {', '.join(sorted(said)) or 'nothing was tried'}. "
            f"Name the key (ssh.identity_file), or let it in: ssh-copy-id {self.user}@{self.host}"
        )


def target(text: str) -> tuple[str | None, str, int | None]:
    """User, host and port of `[user@]host[:port]`, also as a URI, as ssh takes it.

    An IPv6 address with a port is in brackets.
    """
    found = _TARGET.fullmatch(text.strip())
    assert found is not None  # whatever it is, it is a host's name
    user, host, port = found.groups()
    return user, host.strip("[]"), None if port is None else int(port)
