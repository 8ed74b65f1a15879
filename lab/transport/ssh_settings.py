"""What ssh's own configuration and a topology's `ssh` section say about connections."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fabric import Config
from paramiko.config import SSHConfig
from paramiko.ssh_exception import ConfigParseError

from lab.errors import UsageError
from lab.topology import SshOptions
from lab.transport.ssh_auth import SshAuth

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
DEPTH = 16
"""How deep files may include each other (readconf.c, READCONF_MAX_DEPTH)."""


@dataclass(frozen=True)
class SshSettings:
    """What all connections of one topology share."""

    user: str | None
    port: int | None
    config: Any
    """Fabric's, with ~/.ssh/config in it."""

    @classmethod
    def of(cls, options: SshOptions) -> "SshSettings":
        """Read the files that a topology's `ssh` section names.

        Raises:
            UsageError: one of them is not there, or cannot be understood.
        """
        authentication: dict[str, Any] = {"strategy_class": SshAuth}
        if options.identity_file is not None:
            path = Path(options.identity_file).expanduser()
            if not path.is_file():
                raise UsageError(f"ssh.identity_file: there is no file {path}")
            authentication["identities"] = [str(path)]
        # Lazy: Fabric would else read settings files of its own from all over the machine.
        overrides = {"authentication": authentication, "load_ssh_configs": True}
        config = Config(lazy=True, ssh_config=_ssh_config(options), overrides=overrides)
        return cls(options.user, options.port, config)


def _ssh_config(options: SshOptions) -> SSHConfig:
    if options.config is not None:
        files = [Path(options.config).expanduser()]
        if not files[0].is_file():
            raise UsageError(f"ssh.config: there is no file {files[0]}")
    else:  # ssh_config(5): of each keyword the first that is found counts
        files = [Path.home() / ".ssh" / "config", SYSTEM_CONFIG]
    config = SSHConfig()
    for path in files:
        try:
            if path.is_file():
                config.parse(_lines(path))
        except (OSError, ValueError, ConfigParseError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from error
    return config


def _lines(path: Path, depth: int = 0) -> Iterator[str]:
    """A file's lines, with those of the files that it includes, which paramiko passes over."""
    if depth > DEPTH:
        raise ValueError("its Include lines go round in a ring")
    block = "Host *\n"  # whom the lines are for: everybody, until a line says otherwise
    for line in path.read_text().splitlines(keepends=True):
        keyword, *patterns = line.replace("=", " ", 1).split() or [""]
        if keyword.lower() in ("host", "match"):
            block = line
        if keyword.lower() != "include":
            yield line
            continue
        folder = SYSTEM_CONFIG.parent if path.is_relative_to("/etc/ssh") else Path.home() / ".ssh"
        for pattern in patterns:
            found = folder / Path(pattern).expanduser()
            for included in sorted(Path("/").glob(str(found).lstrip("/"))):
                yield from _lines(included, depth + 1)
                yield f"\n{block}"  # its blocks end with it
