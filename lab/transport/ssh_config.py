"""ssh's own configuration files as paramiko reads them, and `Include`, which it passes over."""

import glob
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paramiko.config import SSHConfig, SSHConfigDict

SYSTEM_CONFIG = Path("/etc/ssh/ssh_config")
DEPTH = 16
"""How deep files may include each other (readconf.c, READCONF_MAX_DEPTH)."""
_SETTING = re.compile(r"(\w+)(?:\s*=\s*|\s+)(.+)")


class SshConfig(SSHConfig):
    """paramiko's, quick where there are many hosts."""

    def __init__(self) -> None:
        super().__init__()
        self._found: dict[str, SSHConfigDict] = {}

    def read(self, path: Path) -> None:
        """Add what a file says, and those that it includes, after what is here already.

        Raises:
            OSError: it cannot be read.
            ValueError: it is not text, or files include each other without end.
            ConfigParseError: it cannot be understood.
        """
        self.parse(_lines(path))
        self._found.clear()

    def lookup(self, hostname: str) -> SSHConfigDict:
        """See paramiko's; who asks again for a host gets the same answer."""
        if hostname not in self._found:
            self._found[hostname] = super().lookup(hostname)
        return SSHConfigDict(self._found[hostname])

    def _does_match(self, match_list: Any, *state: Any) -> Any:
        """As paramiko's, which for a block without criteria too asks the system who we are."""
        base: Any = super()
        return match_list and base._does_match(match_list, *state)


def _lines(path: Path, criteria: str = "", depth: int = 0) -> Iterator[str]:
    """A file's lines, with those of the files that it includes in their places.

    Args:
        path: the file.
        criteria: of the block that includes it, as `Match` takes them. The file's own blocks are
            for hosts that meet these as well (ssh_config(5), Include).
        depth: how many files have led to it.
    """
    if depth > DEPTH:
        raise ValueError("its Include lines go round in a ring")
    own = criteria  # of the block at hand
    block = f"Match {criteria}" if criteria else "Host *"  # its first line
    for line in path.read_text().splitlines():
        setting = _SETTING.match(line.strip())
        keyword, value = (setting[1].lower(), setting[2]) if setting else ("", "")
        if keyword in ("host", "match"):
            own = " ".join(filter(None, (criteria, _criteria(keyword, value))))
            block = f"Match {own}" if criteria else line
            yield block
        elif keyword == "include":
            for included in _included(path, shlex.split(value)):
                yield from _lines(included, own, depth + 1)
                yield block  # its blocks end with it
        else:
            yield line


def _included(path: Path, patterns: list[str]) -> Iterator[Path]:
    """As glob(3), where `*` takes no hidden file; folders and links to nothing say nothing."""
    folder = SYSTEM_CONFIG.parent if path.is_relative_to("/etc/ssh") else Path.home() / ".ssh"
    for pattern in patterns:
        whole = str(folder / Path(pattern).expanduser())
        for name in sorted(glob.glob(whole)):  # noqa: PTH207 - pathlib's takes hidden files
            included = Path(name)
            if included.exists() and not included.is_dir():
                yield included


def _criteria(keyword: str, value: str) -> str:
    """Those of a block's first line, as `Match` takes them; nothing where it is for all hosts."""
    words = shlex.split(value)
    if keyword == "host":
        return "" if words == ["*"] else shlex.join(["originalhost", ",".join(words)])
    if words[-1:] == ["all"] and (len(words) == 1 or words[-2] in ("canonical", "final")):
        words.pop()  # it is for what stands alone
    return shlex.join(words)
