"""SyncBatchNorm on the CPU among real ranks, against BatchNorm on the concatenated batch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from lab.parallel import DDP, SyncBatchNorm
from tests.ranks import RankPool

SHAPES: dict[str, tuple[Callable[..., nn.Module], tuple[int, ...]]] = {
    "1d": (nn.BatchNorm1d, (3,)),
    "2d": (nn.BatchNorm2d, (3, 4, 5)),
    "3d": (nn.BatchNorm3d, (3, 2, 2, 2)),
}
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"affine": False},
    {"momentum": None},
    {"track_running_stats": False},
)


def batches(world_size: int, shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    """Of unequal sizes; rank 2 has none."""
    generator = torch.Generator().manual_seed(0)
    sizes = [4, 1, 0, 6][:world_size]
    return [
        (3 + 2 * torch.randn(size, *shape, generator=generator, dtype=torch.float64)).to(dtype)
        for size in sizes
    ]


def loss_of(outputs: Tensor) -> Tensor:
    """Not symmetric, so that no part of the gradient is zero; a sum, so that ranks add up."""
    slope = torch.linspace(-1, 2, outputs.shape[1:].numel(), dtype=outputs.dtype)
    return (outputs.flatten(1).tanh() * slope).sum()


def compare(dtype: torch.dtype, tolerance: float) -> None:
    rank, size = dist.get_rank(), dist.get_world_size()
    for kind, shape in SHAPES.values():
        for options in OPTIONS:
            torch.manual_seed(0)
            plain = kind(3, **options).to(torch.float64)
            for parameter in plain.parameters():
                nn.init.uniform_(parameter, 0.5, 2)
            reference = nn.Sequential(plain)
            ours = nn.Sequential(kind(3, **options)).to(dtype)
            ours.load_state_dict(reference.state_dict())
            ours = SyncBatchNorm.convert_sync_batchnorm(ours)  # type: ignore[assignment]  # the same kind
            assert isinstance(ours[0], SyncBatchNorm)
            parts = batches(size, shape, dtype)
            for _ in range(2):
                whole = torch.cat(parts).double().requires_grad_()
                mine = parts[rank].clone().requires_grad_()
                outputs, expected = ours(mine), reference(whole)
                loss_of(expected).backward()
                loss_of(outputs).backward()
                begin = sum(len(part) for part in parts[:rank])
                place = slice(begin, begin + len(mine))
                assert outputs.dtype == dtype
                close(outputs, expected[place], tolerance)
                assert whole.grad is not None
                assert mine.grad is not None
                close(mine.grad, whole.grad[place], tolerance)
            for parameter, other in zip(ours.parameters(), reference.parameters(), strict=True):
                assert parameter.grad is not None
                assert other.grad is not None
                dist.all_reduce(parameter.grad)
                close(parameter.grad, other.grad, 10 * tolerance)
            for mine, whole in zip(ours.buffers(), reference.buffers(), strict=True):
                close(mine, whole, tolerance)
            if options.get("track_running_stats", True):
                close(ours.eval()(parts[0]), reference.eval()(parts[0].double()), tolerance)


def close(ours: Tensor, expected: Tensor, tolerance: float) -> None:
    torch.testing.assert_close(ours.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str
)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_equals_batchnorm_on_the_concatenated_batch(
    ranks: RankPool, world_size: int, dtype: torch.dtype, tolerance: float
) -> None:
    ranks.run(world_size, compare, dtype, tolerance)


def train_with_ddp() -> tuple[list[Tensor], list[Tensor]]:
    rank, size = dist.get_rank(), dist.get_world_size()

    def make() -> nn.Sequential:
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2)
        ).double()

    inputs = torch.randn(size * 3, 4, generator=torch.Generator().manual_seed(1)).double()
    alone = make()
    model = DDP(SyncBatchNorm.convert_sync_batchnorm(make()), bucket_cap_mb=0)
    for module, batch in ((alone, inputs), (model, inputs[rank * 3 : rank * 3 + 3])):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            module(batch).square().mean().backward()
            optimizer.step()
    return list(alone.state_dict().values()), list(model.state_dict().values())


def test_ddp_with_it_is_one_process_with_the_whole_batch(ranks: RankPool) -> None:
    for alone, together in ranks.run(4, train_with_ddp):
        for one, other in zip(together, alone, strict=True):
            close(one, other, 1e-12)


def half_and_refusals() -> None:
    layer = SyncBatchNorm(2)
    values = torch.full((100, 2), 300.0)
    values[::2] += 4
    assert layer(values.half()).dtype == torch.float16  # 300 * 300 is above float16's largest
    close(layer.running_mean, torch.full((2,), 30.2), 1e-4)  # type: ignore[arg-type]  # it tracks
    for wrong, message in (
        (torch.zeros(3), "found 1 dimensions"),
        (torch.zeros(3, 4), "expected 2 channels, found 4"),
        (torch.zeros(1, 2), "at least 2 values for each channel, found 1"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(wrong)


def tracking_switched_off() -> None:
    layer = SyncBatchNorm(2)
    layer.track_running_stats = False
    layer(torch.arange(6.0).view(3, 2))
    assert torch.equal(layer.get_buffer("running_mean"), torch.zeros(2))
    assert layer.get_buffer("num_batches_tracked") == 0


def test_statistics_stay_when_tracking_is_switched_off(ranks: RankPool) -> None:
    ranks.run(2, tracking_switched_off)


def alone_in_evaluation() -> None:
    layer = SyncBatchNorm(2, track_running_stats=False).eval()
    inputs = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    if dist.get_rank() == 0:
        expected = nn.BatchNorm1d(2, track_running_stats=False)(inputs)
        torch.testing.assert_close(layer(inputs), expected)


def test_one_rank_may_evaluate_alone(ranks: RankPool) -> None:
    ranks.run(2, alone_in_evaluation)


def test_without_a_process_group_it_is_batchnorm() -> None:
    ours, plain = SyncBatchNorm(2), nn.BatchNorm1d(2)
    inputs = torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(ours(inputs), plain(inputs))
    torch.testing.assert_close(ours.running_var, plain.running_var)


def test_half_precision_and_refusals(ranks: RankPool) -> None:
    ranks.run(1, half_and_refusals)
