"""What is wrong with a topology, said so that the reader can put it right."""

from collections.abc import Sequence
from dataclasses import dataclass

from lab.errors import UsageError

SHOWN = 20
"""How many problems a message lists; the rest is counted."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and where.

    `str()` gives one line: `lab.yaml:7: nodes[2].slots: found 0; must be at least 1`.
    """

    file: str | None
    """The file as the user named it, or the option (`--nodes`); None where there is neither."""
    line: int | None
    """Line in the file, counted from 1."""
    field: str
    """The field as it would be written in Python: `nodes[2].slots`. Empty for the whole file."""
    found: str | None
    """What stands there, in words or as YAML would show it; None where nothing does."""
    allowed: str
    """What is allowed instead."""
    nearest: str | None = None
    """The nearest thing that would have been valid."""

    def __str__(self) -> str:
        place = self.file or ""
        if self.line is not None:
            place += f":{self.line}"
        rest = self.allowed if self.found is None else f"found {self.found}; {self.allowed}"
        if self.nearest is not None:
            rest += f"; did you mean '{self.nearest}'?"
        return ": ".join(part for part in (place, self.field, rest) if part)


class UnknownKey(Problem):
    """A key that the place where it stands does not have. `found` is the key."""

    def __str__(self) -> str:
        place = f"{self.file or ''}:{self.line}" if self.line is not None else self.file or ""
        nearest = f"; did you mean '{self.nearest}'?" if self.nearest else "."
        text = f"unknown key{nearest} Allowed: {self.allowed}"
        return ": ".join(part for part in (place, self.field, text) if part)


class TopologyError(UsageError):
    """A topology that cannot be used.

    Attributes:
        problems: everything that is wrong with it, in the order of the file.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        lines = [str(problem) for problem in self.problems[:SHOWN]]
        if len(self.problems) > SHOWN:
            lines.append(f"... and {len(self.problems) - SHOWN:,} more problems")
        super().__init__("\n".join(lines))
