"""The host keys that are known: those of ssh's own files, and lab's private one.

A key is only ever taken from a file. What is in none of them is refused; `lab trust` adds it, after
somebody has compared the fingerprint. A key that is `@revoked` is taken for nobody's. What
`@cert-authority` says is not read, so hosts that only an authority vouches for are unknown.
"""

import base64
import os
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from paramiko import HostKeys, PKey
from paramiko.hostkeys import HostKeyEntry, InvalidHostKey

from lab.errors import LabError

SYSTEM_FILE = Path("/etc/ssh/ssh_known_hosts")
DEFAULT_PORT = 22


def private_file() -> Path:
    """Lab's own file (XDG base directory specification)."""
    given = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    base = given if given.is_absolute() else Path.home() / ".config"
    return base / "multinode-lab" / "known_hosts"


def entry_name(host: str, port: int) -> str:
    """How known_hosts writes a host (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT)."""
    return host if port == DEFAULT_PORT else f"[{host}]:{port}"


class _Line(NamedTuple):
    """One of a file: a key, and whose it is."""

    names: Sequence[str]
    key: PKey

    def is_of(self, name: str) -> bool:
        """Whether it is about a host; names may be hashed."""
        return name in self.names or any(
            known.startswith("|1|") and HostKeys.hash_host(name, known) == known
            for known in self.names
        )


class KnownHosts:
    """The keys of some files, the first file's before the next one's."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Read the files that are there.

        Raises:
            LabError: one is there and cannot be read.
        """
        self._lines: list[tuple[Path, _Line]] = []
        self._revoked: set[bytes] = set()
        for path in files:
            try:
                status = path.stat()
                version = (status.st_ino, status.st_size, status.st_mtime_ns)
                lines, revoked = _read_file(path, version)
                self._lines += [(path, line) for line in lines]
                self._revoked |= revoked
            except FileNotFoundError:
                continue
            except (OSError, ValueError, InvalidHostKey) as error:
                reason = getattr(error, "strerror", None) or f"it has a bad line ({error})"
                raise LabError(f"the known hosts in {path} cannot be read: {reason}") from error

    def keys(self, name: str) -> Iterator[tuple[Path, PKey]]:
        """All keys of a host that are not revoked, by `entry_name`, each with the file it is in."""
        for path, line in self._lines:
            if line.is_of(name) and line.key.asbytes() not in self._revoked:
                yield path, line.key

    def file_of(self, name: str, key: PKey) -> Path | None:
        """The file that has this key for this host."""
        return next((path for path, known in self.keys(name) if known == key), None)


@lru_cache
def _read_file(path: Path, _version: tuple[int, int, int]) -> tuple[Sequence[_Line], set[bytes]]:
    """Its lines, and the keys that it revokes; read once, though each of many hosts asks for it."""
    lines = path.read_text().splitlines()
    return list(_read(lines)), set(_revoked(lines))


def _revoked(lines: Sequence[str]) -> Iterator[bytes]:
    """The keys that are to be trusted nowhere, whatever host the line names (sshd(8))."""
    for text in lines:
        words = text.split()
        if words[:1] == ["@revoked"] and len(words) > 3:
            yield base64.b64decode(words[3])


def _read(lines: Sequence[str]) -> Iterator[_Line]:
    """Each line's key; not those of authorities, whose certificates paramiko does not know."""
    for number, text in enumerate(lines, 1):
        if not text.strip() or text.lstrip().startswith(("#", "@")):
            continue
        entry = HostKeyEntry.from_line(text.strip(), number)
        if entry is None or entry.key is None:  # a marker, or a kind of key that is not for us
            continue
        names = entry.hostnames or []
        for name in names:
            if name.startswith("|1|"):
                _check_hash(name)
        yield _Line(names, entry.key)


def _check_hash(name: str) -> None:
    """Raises ValueError where a hashed name is none; paramiko would find out too late."""
    try:
        HostKeys.hash_host("", name)
    except (AssertionError, IndexError) as error:
        raise ValueError(name) from error


def add_key(path: Path, name: str, key: PKey) -> None:
    """Write a host's key into a file, in place of those that the file has for it.

    Raises:
        LabError: it cannot be written.
    """
    line = HostKeyEntry([name], key).to_line()
    assert line is not None
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lines = path.read_text().splitlines() if path.exists() else []
        kept = [old for old in lines if old.split(" ")[0] != name]
        temporary = path.with_name(f"{path.name}.{os.getpid()}")
        temporary.write_text("\n".join([*kept, line.strip(), ""]))
        temporary.replace(path)
    except OSError as error:
        raise LabError(f"{path} cannot be written: {error.strerror}") from error
