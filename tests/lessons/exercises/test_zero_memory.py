"""ZeRO's memory table, and that the lesson would see a method that keeps too much."""

from dataclasses import replace
from typing import Any

from lab.prove.measure import measure
from lab.prove.recipe import Recipe
from tests.lessons.doing import failures
from tests.ranks import RankPool


def always_ddp(recipe: Recipe, world: Any) -> Any:
    """Keeps everything whole, whatever was asked for."""
    wire, memory = measure(Recipe(parallel="ddp"), world)
    expected = measure(recipe, world)[1].expected
    return wire, replace(memory, expected=expected)


def test_theory_holds(ranks: RankPool) -> None:
    assert failures(ranks, 3, "zero_memory") == []


def test_what_is_kept_whole_is_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "zero_memory", measure=always_ddp)
    assert [what.split(":")[0] for what in failed] == ["zero1"] * 2 + ["zero2"] * 2 + ["fsdp"] * 2
