"""Do a lesson's exercise as one of the test's ranks, right or with something wrong in it."""

from collections.abc import Mapping
from contextlib import ExitStack
from importlib import import_module
from typing import Any
from unittest.mock import patch

from lab.lessons.notebook import perform
from lab.training.world import join_world
from tests.ranks import RankPool


def do(name: str, wrong: Mapping[str, Any]) -> list[tuple[str, bool | None]]:
    """What this rank found, in words, and whether it is as theory says.

    Args:
        name: of the exercise's module.
        wrong: what to put in the place of names in that module; `dist.barrier` is one inside.
    """
    module = import_module(f"lab.lessons.exercises.{name}")
    with ExitStack() as stack, join_world() as world:
        for target, other in wrong.items():
            stack.enter_context(patch(f"{module.__name__}.{target}", other))
        report = perform(module.exercise, world)
        return [(finding.what, finding.holds) for finding in report.findings]


def failures(ranks: RankPool, size: int, name: str, **wrong: Any) -> list[str]:
    """What is not as theory says, the same on every rank; `dist__barrier` for `dist.barrier`."""
    found = ranks.run(size, do, name, {key.replace("__", "."): wrong[key] for key in wrong})
    assert all(others == found[0] for others in found)
    assert any(holds is not None for _, holds in found[0]), "nothing was judged"
    return [what for what, holds in found[0] if holds is False]
