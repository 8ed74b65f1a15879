"""A requirements file for the ranks: what it says, and what pip said against it."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.errors import UsageError

_INCLUDE = re.compile(r"(?:-r\s*|--requirement[\s=]+)(.+)")
_OF_THIS_MACHINE = re.compile(
    r"-[ec]|--(?:editable|constraint)\b"
    r"|(?:-f|--find-links\b)[\s=]*+(?!https?:)"
    r"|.*(?:^|[\s=@+])file:"
    r"|\.|(?!-|[\w+.]+://)[^\s;@]*(?:/|\.(?:whl|zip|tgz|tar\.\w+)(?![^\s;\[]))"
)
"""Options that name files, URLs of files, and paths: what has a slash or ends as archives do."""
_UNREACHABLE = re.compile(
    r"NewConnectionError|ConnectTimeoutError|ReadTimeoutError|ProxyError|SSLError"
    r"|Temporary failure in name resolution"
)
_FROM_FILE = re.compile(r" \(from (.*->)?(-r|line) .*requirements\.txt.*")
"""Where a requirement stood, in a file of lab's own."""
_BUILD_PREFIX = re.compile(r"^#\d+ [\d.]+ ?")
"""What BuildKit puts in front of each line of a step."""


@dataclass(frozen=True)
class Requirements:
    """Packages that a run's ranks have on top of the nodes' own."""

    path: Path
    """The file that the user named."""
    lines: tuple[str, ...]
    """What it and the files it includes say, without comments and blank lines."""

    @classmethod
    def read(cls, path: Path) -> "Requirements":
        """Read a file in pip's format.

        Raises:
            UsageError: it cannot be read, or names what only this machine has: nodes could not
                install it.
        """
        return cls(path, tuple(_read(path, ())))

    @property
    def text(self) -> str:
        """One file that says it all."""
        return "".join(f"{line}\n" for line in self.lines)

    def failure(self, output: Sequence[str], torch: str | None) -> str:
        """One line on why pip could not install them: its own reason, and the cure.

        Args:
            output: what pip wrote, also from within an image's build.
            torch: the version of torch that the nodes have.
        """
        lines = [_FROM_FILE.sub("", _BUILD_PREFIX.sub("", line).rstrip()) for line in output]
        errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
        errors = errors or [line for line in lines if line.startswith("error: ")][-1:]
        reason = [*errors, *lines[-1:], "pip said nothing"][0].rstrip(".")
        conflict = _conflict(lines)
        if any("(constraint) torch" in line for line in conflict):
            wishes = "; ".join(line for line in conflict if "(constraint)" not in line)
            return (
                f"{self.path} asks for another torch than the nodes' {torch}, which stays as it "
                f"is: {wishes}; leave torch out of it, or loosen the versions"
            )
        if conflict:
            cure = f"{'; '.join(conflict)}: loosen the versions"
        elif any(_UNREACHABLE.search(line) for line in lines):
            cure = (
                "the package index does not answer: look at the network and at pip's settings "
                "(PIP_INDEX_URL, PIP_PROXY, PIP_CERT)"
            )
        elif any("No matching distribution" in error for error in errors):
            cure = "look at its name and version"
        else:
            cure = f"correct it; to see more: pip install -r {self.path}"
        return f"the packages of {self.path} cannot be installed: {reason}; {cure}"


def _conflict(lines: Sequence[str]) -> list[str]:
    """Who wants what, where versions contradict each other."""
    if "The conflict is caused by:" not in lines:
        return []
    rest = lines[lines.index("The conflict is caused by:") + 1 :]
    return [line.strip() for line in rest[: rest.index("") if "" in rest else None]]


def _read(path: Path, including: tuple[Path, ...]) -> list[str]:
    if path.resolve() in including:
        raise UsageError(f"{path} includes itself")
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"--requirements {path}: it is not UTF-8; write it as text") from error
    except OSError as error:
        raise UsageError(f"--requirements {path}: {error.strerror}") from error
    found = []
    for number, raw in _whole_lines(text):
        line = re.sub(r"(^|\s)#.*", "", raw).strip()
        if include := _INCLUDE.fullmatch(line):
            found += _read(path.parent / include[1], (*including, path.resolve()))
        elif line and _OF_THIS_MACHINE.match(line):
            raise UsageError(
                f"{path}:{number}: {line}: nodes install packages from an index, not from this "
                "machine's files; name packages, and use --env PYTHONPATH=DIR for code of your own"
            )
        elif line:
            found.append(line)
    return found


def _whole_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines with those that a backslash at their end goes on in, by the number of the first."""
    whole, first = "", 1
    for number, line in enumerate(text.splitlines(), start=1):
        whole, first = (whole + line, first) if whole else (line, number)
        if whole.endswith("\\"):
            whole = whole[:-1]
        else:
            yield first, whole
            whole = ""
    yield first, whole
