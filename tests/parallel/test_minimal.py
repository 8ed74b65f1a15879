"""MinimalDDP and its two functions, among real ranks."""

import copy
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from lab.parallel import (
    MinimalDDP,
    all_reduce_grads_,
    fsdp_round_trip_sketch,
    manual_all_reduce_matches_single_process,
)
from tests.ranks import RankError, RankPool

WORLD_SIZES = (1, 2, 3, 4)


def mlp(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 3))


def batch(rank: int, size: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(100 + rank)
    return (
        torch.randn(size, 13, generator=generator),
        torch.randint(0, 3, (size,), generator=generator),
    )


def mixed(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(5, 5).bfloat16())


def construct() -> dict[str, Tensor]:
    """Each rank starts from weights, statistics and memory layouts of its own."""
    rank = dist.get_rank()
    module = mixed(seed=rank)
    state = module.state_dict()
    state["1.running_mean"].fill_(rank + 1)
    state["1.num_batches_tracked"].fill_(rank + 7)
    if rank % 2:
        weight = module.get_parameter("0.weight")
        weight.data = weight.data.to(memory_format=torch.channels_last)
    wrapped = MinimalDDP(module)
    copied: dict[str, Tensor] = wrapped.state_dict()
    return copied


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_construction_copies_rank_0s_parameters_and_buffers(
    ranks: RankPool, world_size: int
) -> None:
    expected = mixed(seed=0).state_dict()
    expected["1.running_mean"].fill_(1)
    expected["1.num_batches_tracked"].fill_(7)
    for state in ranks.run(world_size, construct):
        assert state.keys() == expected.keys()
        assert all(torch.equal(state[name], expected[name]) for name in expected)


def synchronise() -> list[Tensor]:
    wrapped = MinimalDDP(mlp(seed=dist.get_rank()))
    inputs, targets = batch(dist.get_rank())
    cross_entropy(wrapped(inputs), targets).backward()
    wrapped.sync_grads()
    return [p.grad.clone() for p in wrapped.parameters() if p.grad is not None]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_gradients_are_the_mean_that_one_process_accumulates(
    ranks: RankPool, world_size: int
) -> None:
    model = mlp(seed=0)
    for rank in range(world_size):
        inputs, targets = batch(rank)
        cross_entropy(model(inputs), targets).backward()
    expected = [p.grad / world_size for p in model.parameters() if p.grad is not None]
    results = ranks.run(world_size, synchronise)
    for gradients in results:
        for ours, reference, first in zip(gradients, expected, results[0], strict=True):
            torch.testing.assert_close(ours, reference, rtol=0, atol=1e-7)
            assert torch.equal(ours, first), "ranks differ among themselves"
            if world_size <= 2:
                assert torch.equal(ours, reference), "a sum of two has only one order"


def gradients_of_a_layer_that_only_rank_1_uses() -> tuple[Tensor | None, ...]:
    used, sometimes, never, frozen = (nn.Linear(2, 1, bias=False) for _ in range(4))
    module = nn.ModuleList([used, sometimes, never, frozen])
    for parameter in module.parameters():
        nn.init.ones_(parameter)
    frozen.requires_grad_(False)
    ones = torch.ones(1, 2)
    output = used(ones) + frozen(ones)
    if dist.get_rank() == 1:
        output = output + 4 * sometimes(ones)
    output.sum().backward()
    all_reduce_grads_(module)
    return tuple(parameter.grad for parameter in module.parameters())


def test_a_missing_gradient_counts_as_zeros(ranks: RankPool) -> None:
    for used, sometimes, never, frozen in ranks.run(2, gradients_of_a_layer_that_only_rank_1_uses):
        assert torch.equal(used, torch.ones(1, 2))
        assert torch.equal(sometimes, torch.full((1, 2), 2.0))
        assert torch.equal(never, torch.zeros(1, 2))
        assert frozen is None


def average_in(dtype: torch.dtype, values: list[float]) -> Tensor:
    layer = nn.Linear(2, 3, bias=False).to(dtype)
    # A gradient in another memory layout than the other ranks'.
    gradient = torch.full((2, 3), values[dist.get_rank()], dtype=dtype).t()
    layer.weight.grad = gradient if dist.get_rank() else gradient.contiguous()
    all_reduce_grads_(layer)
    assert layer.weight.grad is not None
    return layer.weight.grad


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (torch.float16, [40000.0, 40000.0, 1000.0]),  # the sum is above float16's largest, 65504
        (torch.bfloat16, [256.0, 1.0, 1.0]),  # 256 + 1 is 256 in bfloat16
        (torch.float64, [1e300, 1e300, 1e300]),  # above float32's largest
    ],
)
def test_no_dtype_overflows_or_loses_bits_on_the_way(
    ranks: RankPool, dtype: torch.dtype, values: list[float]
) -> None:
    expected = torch.full((3, 2), sum(values) / 3, dtype=torch.float64).to(dtype)
    for gradient in ranks.run(3, average_in, dtype, values):
        assert gradient.dtype == dtype
        assert torch.equal(gradient, expected)


def refuse_sparse() -> str:
    embedding = nn.Sequential(nn.Embedding(10, 2, sparse=True))
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match=r"gradient of 0\.weight is sparse") as caught:
        all_reduce_grads_(embedding)
    return str(caught.value)


def test_sparse_gradients_are_refused_with_the_cure(ranks: RankPool) -> None:
    assert "sparse=False" in ranks.run(1, refuse_sparse)[0]


def average_in_pairs() -> tuple[float, float]:
    """Groups {0, 1} and {2, 3}; each pair starts from its own first rank."""
    rank = dist.get_rank()
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, rank)
    wrapped = MinimalDDP(layer, group=pairs[rank // 2])
    wrapped(torch.full((1, 1), float(rank))).backward()
    wrapped.sync_grads()
    assert layer.weight.grad is not None
    return layer.weight.item(), layer.weight.grad.item()


def test_a_group_of_some_ranks_averages_among_them_only(ranks: RankPool) -> None:
    assert ranks.run(4, average_in_pairs) == [(0, 0.5), (0, 0.5), (2, 2.5), (2, 2.5)]


def round_trip() -> tuple[bool, bool]:
    wrapped = MinimalDDP(mlp(seed=1))
    saved, other = mlp(seed=1).state_dict(), mlp(seed=3).state_dict()
    bare = mlp(seed=2)
    bare.load_state_dict(wrapped.state_dict())
    wrapped.load_state_dict(other)
    return (
        all(torch.equal(saved[name], value) for name, value in bare.state_dict().items()),
        all(torch.equal(other[name], value) for name, value in wrapped.module.state_dict().items()),
    )


def test_state_dict_fits_the_bare_model(ranks: RankPool) -> None:
    assert ranks.run(1, round_trip) == [(True, True)]


def matches(
    seed_of_last: int = 0, size_of_last: int = 8, dtype: torch.dtype = torch.float32
) -> tuple[float | str, bool]:
    last = dist.get_rank() == dist.get_world_size() - 1
    model = mlp(seed=seed_of_last if last else 0).to(dtype)
    inputs, targets = batch(dist.get_rank(), size_of_last if last else 8)
    try:
        outcome: float | str = manual_all_reduce_matches_single_process(
            model, cross_entropy, inputs.to(dtype), targets
        )
    except (ValueError, ArithmeticError) as error:
        outcome = f"{type(error).__name__}: {error}"
    return outcome, all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_averaged_gradients_match_the_concatenated_batch(ranks: RankPool, world_size: int) -> None:
    results = ranks.run(world_size, matches)
    differences = [difference for difference, _ in results]
    assert all(untouched for _, untouched in results)
    assert differences == [differences[0]] * world_size
    assert 0 <= differences[0] < 1e-7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1, 8), "ArithmeticError: averaged gradients differ"),
        ((0, 5), "ValueError: the ranks' batches must have equal sizes, found [8, 8, 5]"),
    ],
    ids=["one rank with other weights", "one rank with a smaller batch"],
)
def test_what_does_not_match_is_an_error_on_every_rank(
    ranks: RankPool, arguments: tuple[int, int], message: str
) -> None:
    for outcome, _ in ranks.run(3, matches, *arguments):
        assert outcome.startswith(message)


def matches_not_a_number() -> str:
    layer = nn.Linear(1, 1)
    inputs = torch.full((2, 1), float("nan") if dist.get_rank() == 1 else 1.0)
    with pytest.raises(ArithmeticError) as caught:
        manual_all_reduce_matches_single_process(layer, mse_loss, inputs, torch.zeros(2, 1))
    return str(caught.value)


def test_not_a_number_on_one_rank_does_not_pass_for_equal(ranks: RankPool) -> None:
    assert all("differ" in message for message in ranks.run(2, matches_not_a_number))


def round_trips() -> list[bool]:
    odd = nn.ParameterList([torch.tensor([-0.0, float("nan"), 1e-45]), torch.tensor(3.0)])
    torch.manual_seed(0)
    image = nn.Conv2d(3, 4, 3)
    image.weight.data = image.weight.data.to(memory_format=torch.channels_last)
    modules = [mlp(seed=0), odd, mlp(seed=0).bfloat16(), image]
    copies = [copy.deepcopy(module).state_dict() for module in modules]
    found = [fsdp_round_trip_sketch(module) for module in modules]
    for module, saved in zip(modules, copies, strict=True):
        for name, value in module.state_dict().items():
            torch.testing.assert_close(value, saved[name], rtol=0, atol=0, equal_nan=True)
    with pytest.raises(ValueError, match=r"one dtype, found torch\.bfloat16, torch\.float32"):
        fsdp_round_trip_sketch(mixed(seed=0))
    return found


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_the_fsdp_round_trip_returns_every_bit(ranks: RankPool, world_size: int) -> None:
    assert ranks.run(world_size, round_trips) == [[True] * 4] * world_size


def lose_a_bit() -> list[bool]:
    """A gather that gives rank 1 the negative of what was sent."""
    from lab.parallel import minimal

    gather = minimal._gather

    def wrong(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        return gather(tensor, group) * (-1 if dist.get_rank() else 1)

    with patch.object(minimal, "_gather", wrong):
        zeros = nn.ParameterList([torch.zeros(3)])
        return [fsdp_round_trip_sketch(zeros), fsdp_round_trip_sketch(mlp(seed=0))]


def test_the_fsdp_round_trip_notices_the_sign_of_zero(ranks: RankPool) -> None:
    assert ranks.run(2, lose_a_bit) == [[True, True], [False, False]]


def fail_on_rank_1() -> None:
    if dist.get_rank() == 1:
        raise OSError("disk on fire")
    dist.barrier()


def test_the_pool_reports_a_failing_rank_and_recovers(ranks: RankPool) -> None:
    with pytest.raises(RankError, match="disk on fire"):
        ranks.run(2, fail_on_rank_1)
    assert len(ranks.run(2, synchronise)) == 2
