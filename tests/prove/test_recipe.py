"""What can be asked for, and how equal it must come out."""

from typing import Any

import pytest

from lab.prove import Recipe
from lab.prove.matrix import recipes
from lab.prove.recipe import OPTIONS


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"impl": "torch", "all_reduce": "ordered"}, "ddp of impl torch has no all-reduce, only"),
        ({"impl": "torch", "mean": "avg"}, "has no mean"),
        ({"impl": "torch", "comm_hook": "bf16"}, "for nccl alone"),
        ({"impl": "minimal", "all_reduce": "ordered"}, "ddp of impl minimal has no all-reduce"),
        ({"impl": "minimal", "static_graph": True}, "has no static-graph, only accumulate"),
        ({"impl": "minimal", "parallel": "zero1"}, "impl minimal has no zero1, only ddp"),
        ({"impl": "minimal", "bucket_cap_mb": 1.0}, "has no bucket-cap-mb"),
        ({"impl": "torch", "parallel": "none"}, "impl torch has no none"),
        ({"parallel": "fsdp", "impl": "torch", "prefetch": False}, "has no prefetch"),
        ({"reshard_after_forward": False}, "ddp of impl ours has no reshard-after-forward"),
        ({"parallel": "none", "all_reduce": "ordered"}, "none of impl ours has no all-reduce"),
        ({"parallel": "zero2", "comm_hook": "fp16"}, "zero2 of impl ours has no comm-hook"),
        ({"all_reduce": "ordered", "comm_hook": "fp16"}, "exclude each other"),
    ],
)
def test_options_that_an_implementation_has_not_are_refused(
    arguments: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        Recipe(**arguments)


def test_no_parallelism_is_for_one_rank() -> None:
    Recipe(parallel="none").check_world(1)
    Recipe().check_world(4)
    with pytest.raises(ValueError, match="none on 2 ranks would train 2 models"):
        Recipe(parallel="none").check_world(2)


@pytest.mark.parametrize(
    ("arguments", "bitwise_at"),
    [
        ({}, {1, 2}),
        ({"impl": "torch"}, {1, 2}),
        ({"impl": "minimal"}, {1, 2}),
        ({"mean": "divide_then_sum"}, {1, 2}),
        ({"parallel": "zero1"}, {1, 2}),
        ({"parallel": "fsdp", "impl": "torch"}, {1, 2}),
        ({"parallel": "fsdp"}, {1, 2, 3, 4, 8}),
        ({"parallel": "zero2"}, {1, 2, 3, 4, 8}),
        ({"parallel": "zero2", "mean": "divide_then_sum"}, {1, 2}),
        ({"parallel": "fsdp", "accumulate": 3, "prefetch": False}, {1, 2, 3, 4, 8}),
        ({"all_reduce": "hierarchical"}, {1, 2}),
        ({"all_reduce": "ordered"}, {1, 2, 3, 4, 8}),
        ({"all_reduce": "ordered", "parallel": "zero1"}, {1, 2, 3, 4, 8}),
        ({"comm_hook": "fp16"}, set()),
        ({"parallel": "fsdp", "impl": "torch", "precision": "bfloat16"}, set()),
    ],
)
def test_every_bit_is_demanded_where_sums_have_one_order(
    arguments: dict[str, Any], bitwise_at: set[int]
) -> None:
    recipe = Recipe(**arguments)
    assert {size for size in (1, 2, 3, 4, 8) if recipe.demand(size).bitwise} == bitwise_at


def test_rounding_widens_the_tolerance_and_nothing_else_does() -> None:
    assert Recipe().demand(4).tolerance == 1e-6
    assert Recipe(comm_hook="bf16").demand(4).tolerance > 1e-3


def test_the_title_and_the_command_line_say_what_is_not_default() -> None:
    recipe = Recipe(steps=3, impl="torch", parallel="fsdp", reshard_after_forward=False)
    assert recipe.title == "fsdp torch no reshard_after_forward"
    assert " ".join(recipe.arguments()) == (
        "--steps 3 --parallel fsdp --impl torch --no-reshard-after-forward"
    )
    assert Recipe().arguments() == []


def test_the_matrix_has_every_method_with_every_option() -> None:
    made = list(recipes(Recipe(steps=5), 2))
    assert len(set(made)) == len(made)
    assert {recipe.steps for recipe in made} == {5}
    for impl, methods in OPTIONS.items():
        for parallel in methods:
            found = [r for r in made if (r.impl, r.parallel) == (impl, parallel)]
            assert bool(found) is (parallel != "none")
    assert "ddp all_reduce=ordered" in {recipe.title for recipe in made}
    assert {r.parallel for r in recipes(Recipe(), 1)} > {r.parallel for r in made}
