"""What ssh's own configuration and a topology's `ssh` section say about connections."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paramiko.ssh_exception import ConfigParseError

from lab.errors import UsageError
from lab.topology import SshOptions
from lab.transport.light_fabric import Config
from lab.transport.ssh_auth import SshAuth
from lab.transport.ssh_config import SYSTEM_CONFIG, SshConfig


@dataclass(frozen=True)
class SshSettings:
    """What all connections of one topology share."""

    user: str | None
    port: int | None
    config: Any
    """Fabric's, with ~/.ssh/config in it."""
    gateways: dict[str, Any] = field(default_factory=dict)
    """Connections to jump hosts, by the way there: nodes behind one share it."""

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


def _ssh_config(options: SshOptions) -> SshConfig:
    if options.config is not None:
        files = [Path(options.config).expanduser()]
        if not files[0].is_file():
            raise UsageError(f"ssh.config: there is no file {files[0]}")
    else:  # ssh_config(5): of each keyword the first that is found counts
        files = [Path.home() / ".ssh" / "config", SYSTEM_CONFIG]
    config = SshConfig()
    for path in files:
        try:
            if path.is_file():
                config.read(path)
        except (OSError, ValueError, ConfigParseError) as error:
            raise UsageError(f"{path} cannot be read: {error}") from error
    return config
