"""The methods side by side, and that the lesson would see one that sends or learns otherwise."""

from typing import Any

from torch import nn

from lab.prove.measure import measure
from lab.prove.recipe import Recipe
from lab.prove.subjects import Subject
from lab.prove.wrapping import on_ranks, one_process
from tests.lessons.doing import failures
from tests.ranks import RankPool


def fsdp_is_ddp(recipe: Recipe, world: Any) -> Any:
    """What it costs where a rank keeps everything."""
    return measure(Recipe(parallel="ddp") if recipe.parallel == "fsdp" else recipe, world)


def ddp_is_alone(recipe: Recipe, model: nn.Module, device: Any) -> Subject:
    """Nobody averages what DDP should."""
    if recipe.parallel == "ddp":
        return one_process(recipe, model)
    return on_ranks(recipe, model, device)


def test_theory_holds(ranks: RankPool) -> None:
    assert failures(ranks, 2, "methods") == []


def test_costs_of_another_method_are_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "methods", measure=fsdp_is_ddp)
    assert failed == [
        "fsdp: bytes received",
        "MB that ddp, zero1, zero2, fsdp keep",
        "MB at the peak, fsdp and ddp",
    ]


def test_what_learns_something_else_is_seen(ranks: RankPool) -> None:
    failed = failures(ranks, 2, "methods", on_ranks=ddp_is_alone)
    assert "zero2: parameters differ from ddp's by" in failed
