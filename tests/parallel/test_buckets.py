"""Buckets by themselves, and DDP on models that nobody thought of."""

from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lab.parallel import DDP, ZeroRedundancyOptimizer, comm_hooks
from lab.parallel.buckets import MEBIBYTE, default_cap_mb, make_buckets
from tests.ranks import RankPool

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> nn.Parameter:
    return nn.Parameter(torch.zeros(shape, dtype=dtype))


def numbers(parameters: list[nn.Parameter], cap_bytes: float) -> list[list[int]]:
    return [bucket.numbers for bucket in make_buckets(parameters, cap_bytes / MEBIBYTE)]


def test_buckets_fill_in_reverse_and_close_at_the_cap() -> None:
    parameters = [parameter(10) for _ in range(5)]  # 40 bytes each
    assert numbers(parameters, 80) == [[4, 3], [2, 1], [0]]
    assert numbers(parameters, 81) == [[4, 3, 2], [1, 0]], "the last gradient may exceed the cap"
    assert numbers(parameters, 0) == [[4], [3], [2], [1], [0]]
    assert numbers(parameters, 1e9) == [[4, 3, 2, 1, 0]]


def test_without_an_opinion_a_model_gets_16_buckets() -> None:
    def of(mebibytes: float) -> list[nn.Parameter]:
        return [nn.Parameter(torch.empty(int(mebibytes * MEBIBYTE) // 4, device="meta"))]

    assert default_cap_mb(of(160)) == 10
    assert default_cap_mb(of(8)) == 3, "not smaller"
    assert default_cap_mb(of(1000)) == 25, "not larger"


def test_one_dtype_per_bucket_sent_when_their_last_gradient_is_due() -> None:
    parameters = [parameter(1, dtype=DTYPES[number % 2]) for number in range(6)]
    assert numbers(parameters, 1e9) == [[5, 3, 1], [4, 2, 0]]
    assert numbers(parameters, 8) == [[5], [3], [4, 2], [1], [0]]


def test_views_have_their_parameters_shape_and_layout() -> None:
    image = nn.Parameter(torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last))
    gapped = nn.Parameter(torch.zeros(4, 8)[:, ::2])
    scalar = parameter()
    (bucket,) = make_buckets([scalar, gapped, image], 25)
    views = bucket.gradients()
    assert [view.shape for view in views] == [image.shape, gapped.shape, scalar.shape]
    assert views[0].stride() == image.stride()
    assert views[1].is_contiguous()
    for number, view in enumerate(views):
        view.fill_(number)
    assert bucket.buffer().tolist() == [0] * 120 + [1] * 16 + [2]
    assert bucket.is_last()


def test_pack_and_unpack() -> None:
    one, missing, unused = parameter(2), parameter(2), parameter(2)
    (bucket,) = make_buckets([one, missing, unused], 25)
    bucket.buffer().fill_(7)
    one.grad = torch.tensor([1.0, 2.0])
    bucket.pack()
    assert bucket.buffer().tolist() == [0, 0, 0, 0, 1, 2]
    assert one.grad is bucket.gradients()[2]
    one.grad += 1  # in the bucket from now on
    bucket.pack()
    assert bucket.buffer().tolist() == [0, 0, 0, 0, 2, 3]
    bucket.set_buffer(torch.arange(6.0))
    bucket.unpack(used=[True, True, False])
    assert one.grad.tolist() == [4, 5]
    assert missing.grad is not None
    assert missing.grad.tolist() == [2, 3]
    assert unused.grad is None


@given(
    st.lists(st.tuples(st.integers(0, 50), st.sampled_from(DTYPES)), min_size=1, max_size=20),
    st.integers(0, 500),
)
def test_every_parameter_is_in_one_bucket(sizes: list[tuple[int, torch.dtype]], cap: int) -> None:
    parameters = [parameter(size, dtype=dtype) for size, dtype in sizes]
    buckets = make_buckets(parameters, cap / MEBIBYTE)
    assert sorted(n for bucket in buckets for n in bucket.numbers) == list(range(len(sizes)))
    assert [bucket.index() for bucket in buckets] == list(range(len(buckets)))
    assert [bucket.is_last() for bucket in buckets] == [False] * (len(buckets) - 1) + [True]
    last_ones = [bucket.numbers[-1] for bucket in buckets]
    assert last_ones == sorted(last_ones, reverse=True)
    for bucket in buckets:
        assert bucket.numbers == sorted(bucket.numbers, reverse=True)
        assert {parameters[n].dtype for n in bucket.numbers} == {bucket.buffer().dtype}
        without_last = sum(parameters[n].nbytes for n in bucket.numbers[:-1])
        assert len(bucket.numbers) == 1 or without_last < cap


# A layer: (width, dtype, whether to freeze it, whether to use its weight again, use on ranks).
Layer = tuple[int, torch.dtype, bool, bool, frozenset[int]]

layers = st.tuples(
    st.integers(1, 9),
    st.sampled_from(DTYPES),
    st.booleans(),
    st.booleans(),
    st.frozensets(st.integers(0, 2)),
)


class Tree(nn.Module):
    """Side branches of any width and dtype, nested in each other; some are tied, some frozen."""

    def __init__(self, layers: list[Layer]) -> None:
        super().__init__()
        self.head = nn.Linear(4, 4)
        self.branch: nn.Module | None = None
        self.use: frozenset[int] = frozenset()
        if layers:
            width, dtype, freeze, tie, self.use = layers[0]
            up, down = nn.Linear(4, width, dtype=dtype), nn.Linear(width, 4, dtype=dtype)
            if tie:
                down.weight = nn.Parameter(up.weight.detach().t().clone())
                up.bias = nn.Parameter(torch.zeros(width, dtype=dtype))
                self.again = down
            self.branch = nn.Sequential(up, nn.Tanh(), down).requires_grad_(not freeze)
            self.rest = Tree(layers[1:])

    def forward(self, inputs: Tensor, rank: int) -> Tensor:
        output: Tensor = self.head(inputs)
        if self.branch is not None:
            if rank in self.use:
                up = self.branch.get_parameter("0.weight")
                branch = self.branch(inputs.to(up.dtype))
                if hasattr(self, "again"):
                    branch = branch + self.again(torch.tanh(inputs.to(up.dtype) @ up.t()))
                output = output + branch.float()
            output = output + self.rest(torch.tanh(output), rank)
        return output


def on_ranks_and_alone(
    layers: list[Layer], cap: float, static: bool, sharded: bool
) -> list[tuple[str, Tensor | None, Tensor | None]]:
    """Gradients of two steps: (name, the ranks', one process's), summed in rank order.

    With `sharded` those that ZeRO's stage 2 has in N parts.
    """
    size = dist.get_world_size()

    def gradient_of(model: Any, bare: nn.Module, rank: int, step: int) -> list[Tensor | None]:
        generator = torch.Generator().manual_seed(10 * step + rank)
        model.zero_grad()
        outputs = model(torch.randn(3, 4, generator=generator), rank)
        outputs.square().mean().backward()
        return [p.grad for p in bare.parameters()]

    torch.manual_seed(0)
    alone = Tree(layers)
    torch.manual_seed(dist.get_rank())
    bare = Tree(layers)
    model = DDP(bare, bucket_cap_mb=cap, find_unused_parameters=not static, static_graph=static)
    zero = None
    if sharded:
        zero = ZeroRedundancyOptimizer(
            bare.parameters(), torch.optim.SGD, stage=2, model=model, lr=1.0
        )
    else:
        model.register_comm_hook(None, comm_hooks.ordered_hook)
    found = []
    for step in range(2):
        whole = gradient_of(model, bare, dist.get_rank(), step)
        if zero is not None:
            assert whole == [None] * len(whole)
            assert zero.gradient_bytes() <= total_bytes(bare) // size + 64 * len(whole)
            whole = zero.whole_gradients()
        ours = [None if g is None else g.clone() for g in whole]
        total: list[Tensor | None] = [None] * len(ours)
        for rank in range(size):
            for number, gradient in enumerate(gradient_of(alone, alone, rank, step)):
                if gradient is not None:
                    before = total[number]
                    total[number] = gradient if before is None else before + gradient
        names = [name for name, _ in alone.named_parameters()]
        means = [None if t is None else t / size for t in total]
        found += list(zip(names, ours, means, strict=True))
    return found


def total_bytes(model: nn.Module) -> int:
    return sum(p.nbytes for p in model.parameters())


@given(
    world_size=st.integers(1, 3),
    layers=st.lists(layers, max_size=5),
    cap=st.sampled_from([0, 1e-4, 3e-4, 25]),
    static=st.booleans(),
    sharded=st.booleans(),
)
@settings(
    max_examples=24,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_model_has_one_processs_gradients(
    ranks: RankPool, world_size: int, layers: list[Layer], cap: float, static: bool, sharded: bool
) -> None:
    for result in ranks.run(world_size, on_ranks_and_alone, layers, cap, static, sharded):
        for name, ours, expected in result:
            if expected is None:
                assert ours is None, name
            else:
                assert ours is not None, name
                assert torch.equal(ours, expected), name


def on_ranks_that_forget() -> Any:
    def forgetful(state: Any, bucket: Any) -> comm_hooks.Pending:
        if dist.get_rank() == 1:
            bucket.buffer().zero_()
        return comm_hooks.allreduce_hook(state, bucket)

    with patch.object(comm_hooks, "ordered_hook", forgetful):
        return on_ranks_and_alone([], 25, False, False)


def test_the_property_test_would_notice_a_rank_that_is_left_out(ranks: RankPool) -> None:
    for result in ranks.run(2, on_ranks_that_forget):
        assert not any(torch.equal(ours, expected) for _, ours, expected in result)
