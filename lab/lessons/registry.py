"""Which lessons there are, in the order in which they teach. No torch here."""

import ast
import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lab.errors import UsageError

ALL = "all"
"""The word for every lesson."""


@dataclass(frozen=True)
class Lesson:
    """One exercise: the module of the same name in `exercises`."""

    name: str
    """On the command line, with dashes; the module's has underscores."""
    ranks: int = 2
    """How many it needs at least."""

    @property
    def module(self) -> str:
        """What each rank runs."""
        return f"lab.lessons.exercises.{self.name.replace('-', '_')}"

    @property
    def path(self) -> Path:
        """Its file."""
        return Path(__file__).parent / "exercises" / f"{self.name.replace('-', '_')}.py"

    @cached_property
    def text(self) -> str:
        """The exercise and its theory: the module's docstring, read without importing torch."""
        text = ast.get_docstring(ast.parse(self.path.read_text(encoding="utf-8")))
        assert text is not None, f"{self.path} has no docstring"
        return text

    @property
    def title(self) -> str:
        """The docstring's first line, without its full stop."""
        return self.text.partition("\n")[0].rstrip(".")


LESSONS = (
    Lesson("world-size-4"),
    Lesson("collectives-by-hand"),
    Lesson("replicas"),
    Lesson("sum-without-division", ranks=4),
    Lesson("avg-or-sum"),
    Lesson("overlap"),
    Lesson("buckets"),
    Lesson("no-sync"),
    Lesson("unused-layer"),
    Lesson("barrier"),
    Lesson("sync-share"),
    Lesson("zero-memory"),
    Lesson("fsdp-reshard"),
    Lesson("nccl-environment"),
    Lesson("methods"),
    Lesson("data-parallel"),
    Lesson("fine-tuning"),
)


def find_lessons(names: Sequence[str]) -> list[Lesson]:
    """The lessons of these names, in that order; `all` of them.

    Raises:
        UsageError: there is no such lesson.
    """
    known = {lesson.name: lesson for lesson in LESSONS}
    found: list[Lesson] = []
    for name in names:
        if name == ALL:
            found += LESSONS
        elif name in known:
            found.append(known[name])
        else:
            near = difflib.get_close_matches(name, [*known, ALL], n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"there is no lesson {name}; {hint}lab lesson list shows them all")
    return found
