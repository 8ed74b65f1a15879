"""The host keys that are known: those of ssh's own files, and lab's private one.

A key is only ever taken from a file. What is in none of them is refused; `lab trust` adds it, after
somebody has compared the fingerprint. A key that is `@revoked` is taken for nobody's. What
`@cert-authority` says is not read, so hosts that only an authority vouches for are unknown.
"""

import base64
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

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


class KnownHosts:
    """The keys of some files, the first file's before the next one's."""

    def __init__(self, files: Sequence[Path]) -> None:
        """Read the files that are there.

        Raises:
            LabError: one is there and cannot be read.
        """
        self._lines: list[tuple[Path, HostKeys]] = []  # paramiko keeps one key of a kind together
        self._revoked: set[bytes] = set()
        for path in files:
            try:
                lines = path.read_text().splitlines()
                self._lines += [(path, line) for line in _read(lines)]
                self._revoked |= set(_revoked(lines))
            except FileNotFoundError:
                continue
            except (OSError, ValueError, InvalidHostKey) as error:
                reason = getattr(error, "strerror", None) or f"it has a bad line ({error})"
                raise LabError(f"the known hosts in {path} cannot be read: {reason}") from error

    def keys(self, name: str) -> Iterator[tuple[Path, PKey]]:
        """All keys of a host that are not revoked, by `entry_name`, each with the file it is in."""
        for path, line in self._lines:
            for key in (line.lookup(name) or {}).values():
                if key.asbytes() not in self._revoked:
                    yield path, key

    def file_of(self, name: str, key: PKey) -> Path | None:
        """The file that has this key for this host."""
        return next((path for path, known in self.keys(name) if known == key), None)


def _revoked(lines: Sequence[str]) -> Iterator[bytes]:
    """The keys that are to be trusted nowhere, whatever host the line names (sshd(8))."""
    for text in lines:
        words = text.split()
        if words[:1] == ["@revoked"] and len(words) > 3:
            yield base64.b64decode(words[3])


def _read(lines: Sequence[str]) -> Iterator[HostKeys]:
    """Each line's keys; not those of authorities, whose certificates paramiko does not know."""
    for number, text in enumerate(lines, 1):
        if not text.strip() or text.lstrip().startswith(("#", "@")):
            continue
        entry = HostKeyEntry.from_line(text.strip(), number)
        if entry is None or entry.key is None:  # a marker, or a kind of key that is not for us
            continue
        line = HostKeys()
        for name in entry.hostnames or ():
            line.add(name, entry.key.get_name(), entry.key)
        yield line


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
