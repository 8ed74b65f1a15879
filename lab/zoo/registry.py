"""Which cases there are."""

import difflib
from collections.abc import Sequence
from functools import cache

from lab.errors import UsageError
from lab.zoo.case import CASES, Case


@cache
def all_cases() -> tuple[Case, ...]:
    """All of them, by name."""
    return tuple(Case.load(file.parent) for file in sorted(CASES.glob("*/case.yaml")))


def find_cases(names: Sequence[str]) -> list[Case]:
    """The cases of these names, in that order.

    Raises:
        UsageError: there is no such case.
    """
    known = {case.name: case for case in all_cases()}
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"there is no case {name}; {hint}lab zoo list shows them all")
    return [known[name] for name in names]
