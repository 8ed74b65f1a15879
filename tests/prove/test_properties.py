"""Random models of random dtypes on random ranks, by every method: always one process's bits."""

from typing import Any, Literal, NamedTuple

import pytest
import torch
import torch.distributed as dist
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lab.prove import Recipe
from lab.prove.round_trip import same_bits
from lab.prove.sharded import Sharded
from lab.prove.subjects import Subject, gradient_of
from lab.prove.wrapping import on_ranks, one_process
from tests.ranks import RankPool

Tree = tuple[Any, ...]
"""Names of layers, and trees."""
LEAVES: dict[str, Any] = {
    "linear": lambda width: nn.Linear(width, width),
    "bare": lambda width: nn.Linear(width, width, bias=False),
    "norm": nn.LayerNorm,
    "tanh": lambda width: nn.Tanh(),
    "scale": lambda width: Scale(),
    "frozen": lambda width: nn.Linear(width, width).requires_grad_(False),
}


class Scale(nn.Module):
    """A parameter without dimensions: in most shards there is nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(0.75))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.factor


class Residual(nn.Sequential):
    """A branch of the tree."""

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = inputs
        for layer in self:
            outputs = layer(outputs)
        return inputs + outputs


class Case(NamedTuple):
    """One example."""

    tree: Tree
    width: int
    dtype: torch.dtype
    batch: int
    recipe: Recipe


def build(tree: Tree, width: int) -> nn.Module:
    return Residual(
        *(LEAVES[node](width) if isinstance(node, str) else build(node, width) for node in tree)
    )


def model_of(case: Case, seed: int) -> nn.Module:
    """With a trained layer at the end, whatever the tree is."""
    torch.manual_seed(seed)
    return nn.Sequential(build(case.tree, case.width), nn.Linear(case.width, 2)).to(case.dtype)


def backward(case: Case, subject: Subject, step: int, rank: int, microbatch: int) -> None:
    generator = torch.Generator().manual_seed(step * 1000 + rank * 10 + microbatch)
    inputs = torch.randn(case.batch, case.width, generator=generator).to(case.dtype)
    loss: Tensor = subject.model(inputs).square().mean()
    loss.backward()


def compare(case: Case) -> list[str]:
    """Two steps on the ranks and in one process; what differs on this rank."""
    rank, size, last = dist.get_rank(), dist.get_world_size(), case.recipe.accumulate - 1
    ours = on_ranks(case.recipe, model_of(case, seed=rank), torch.device("cpu"))
    one = one_process(case.recipe, model_of(case, seed=0))
    different = []
    for step in range(2):
        ours.optimizer.zero_grad()
        with ours.accumulating():
            for microbatch in range(last):
                backward(case, ours, step, rank, microbatch)
        backward(case, ours, step, rank, last)
        trained = one.trained()
        totals = [torch.zeros_like(parameter) for parameter in trained]
        for other in range(size):
            one.optimizer.zero_grad()
            for microbatch in range(last + 1):
                backward(case, one, step, other, microbatch)
            own = [gradient_of(parameter) for parameter in trained]
            totals = [b if other == 0 else a + b for a, b in zip(totals, own, strict=True)]
        for parameter, total in zip(trained, totals, strict=True):
            parameter.grad = total / size
        for what in ("gradients", "parameters"):
            if what == "parameters":
                ours.optimizer.step()
                one.optimizer.step()
            if not same_bits(getattr(ours, what)(), getattr(one, what)()):
                different.append(f"{what} of step {step}")
    if isinstance(ours, Sharded):
        state = ours.whole_state()
        ours.load_whole_state({name: tensor.clone() for name, tensor in state.items()})
        if not same_bits(ours.parameters(), one.parameters()):
            different.append("parameters after loading")
    return different


def compare_all(cases: list[Case]) -> list[list[str]]:
    """Several examples in one group."""
    return [compare(case) for case in cases]


trees = st.recursive(
    st.sampled_from(sorted(LEAVES)),
    lambda nodes: st.lists(nodes, min_size=1, max_size=3),
    max_leaves=6,
).map(lambda tree: (tree,) if isinstance(tree, str) else tuple_of(tree))


def tuple_of(tree: Any) -> Any:
    return tree if isinstance(tree, str) else tuple(map(tuple_of, tree))


def recipes_of(parallel: Literal["ddp", "zero1", "zero2", "fsdp"]) -> st.SearchStrategy[Recipe]:
    options: dict[str, st.SearchStrategy[Any]] = {
        "parallel": st.just(parallel),
        "accumulate": st.integers(1, 2),
        "optimizer": st.sampled_from(["adam", "sgd"]),
    }
    if parallel == "fsdp":
        options |= {"reshard_after_forward": st.booleans(), "prefetch": st.booleans()}
    else:
        options |= {"bucket_cap_mb": st.sampled_from([0.0, 0.0001, 0.0005, 25.0])}
    if parallel in ("ddp", "zero1"):
        options |= {"all_reduce": st.just("ordered"), "static_graph": st.booleans()}
    return st.builds(Recipe, **options)


@pytest.mark.parametrize("parallel", ["ddp", "zero1", "zero2", "fsdp"])
@settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    phases=[
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
    ],  # each failure ends the ranks: no shrinking
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_any_model_has_one_processs_bits(
    ranks: RankPool, parallel: Literal["ddp", "zero1", "zero2", "fsdp"], data: st.DataObject
) -> None:
    # FSDP sums bfloat16 in float32, which is better and not what one process does.
    dtypes = [torch.float32, torch.float64] + [torch.bfloat16] * (parallel != "fsdp")
    case = st.builds(
        Case,
        tree=trees,
        width=st.integers(1, 9),
        dtype=st.sampled_from(dtypes),
        batch=st.integers(1, 3),
        recipe=recipes_of(parallel),
    )
    cases = data.draw(st.lists(case, min_size=4, max_size=4))
    world_size = data.draw(st.sampled_from([1, 2, 3, 4]))
    found = ranks.run(world_size, compare_all, cases)
    assert found == [[[]] * len(cases)] * world_size
