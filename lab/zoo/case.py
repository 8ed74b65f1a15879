"""One case of the zoo: a script with one fault, its corrected twin, and what must be found."""

import ast
import difflib
import re
from functools import cached_property
from pathlib import Path
from typing import Literal, Self, get_args

import yaml
from pydantic import BaseModel, ConfigDict, model_validator

from lab.diagnose.finding import Kind
from lab.topology import Place
from lab.topology.slurm import Launcher

CASES = Path(__file__).parent / "cases"
MARK = re.compile(r"  # <- fault$", re.MULTILINE)
"""Ends the lines that a finding may name. Ranks never see it: `Case.script` leaves it out."""

Twin = Literal["fault", "healthy"]


class Expected(BaseModel):
    """The right verdict. Its line is one of those that the script marks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    ranks: tuple[int, ...] | Literal["any"]
    """The guilty ones. `any`: which it is differs from run to run, or the ranks are alike."""


class Cut(BaseModel):
    """Two nodes that cannot reach each other any more, though all others reach both."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    between: tuple[str, str]
    after: str | None = None
    """What a rank has written by then; None: it is so before the ranks begin."""

    def __str__(self) -> str:
        since = "before the ranks begin" if self.after is None else f"after `{self.after}`"
        return f"the network between {' and '.join(self.between)} is cut {since}"


class Case(BaseModel):
    """A folder of `cases`: `case.yaml`, which is this, `healthy.py`, and `fault.py` if no `cut`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    """That of the folder, with dashes."""
    title: str
    expect: Expected
    also: tuple[Kind, ...] = ()
    """What follows from the fault, and may be found besides."""
    nodes: int
    slots: int
    where: tuple[Place, ...] = get_args(Place)
    """Where it can occur."""
    elsewhere: str | None = None
    """Why it cannot where it cannot."""
    shm: str | None = None
    """Shared memory of the containers, where the fault needs them to have little."""
    launcher: Launcher | None = None
    """What starts the ranks on Slurm, where the fault shows itself under that alone."""
    cut: Cut | None = None
    """What happens to the network, where the fault is not in the script: the twin has the same."""
    wrong: str
    """What goes wrong."""
    field: str
    """How it shows where nobody looks for it."""
    seen: str
    """How lab sees it."""

    @classmethod
    def load(cls, folder: Path) -> "Case":
        """Read a case."""
        text = (folder / "case.yaml").read_text(encoding="utf-8")
        return cls.model_validate({"name": folder.name.replace("_", "-"), **yaml.safe_load(text)})

    @model_validator(mode="after")
    def _says_why_not_elsewhere(self) -> Self:
        if (self.elsewhere is None) != (set(self.where) == set(get_args(Place))):
            raise ValueError("`elsewhere` is for cases that cannot occur everywhere, and for all")
        return self

    @property
    def folder(self) -> Path:
        """Where its files are."""
        return CASES / self.name.replace("-", "_")

    def script(self, twin: Twin) -> str:
        """What the ranks run: the file without the marks."""
        name = "healthy" if self.cut else twin
        return MARK.sub("", (self.folder / f"{name}.py").read_text(encoding="utf-8"))

    @cached_property
    def lines(self) -> frozenset[int]:
        """The lines of the fault that are right to name; none: the script has none that did it.

        All lines of a statement count where its first one is marked: Python names any of them.
        """
        if self.cut:
            return frozenset()
        text = (self.folder / "fault.py").read_text(encoding="utf-8")
        marked = {text.count("\n", 0, found.start()) + 1 for found in MARK.finditer(text)}
        spans = [
            range(node.lineno, (node.end_lineno or node.lineno) + 1)
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Expr | ast.Assign) and node.lineno in marked
        ]
        return frozenset(marked.union(*spans))

    @property
    def difference(self) -> str:
        """What the twin does otherwise, as a unified diff; what is done to it, in words."""
        if self.cut:
            return f"{self.cut}\n"
        fault, healthy = (self.script(twin).splitlines(True) for twin in get_args(Twin))
        return "".join(difflib.unified_diff(fault, healthy, "fault.py", "healthy.py", n=2))
