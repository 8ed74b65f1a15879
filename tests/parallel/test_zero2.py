"""ZeRO stage 2 among real ranks, against one process and against torch's ZeRO."""

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from lab.parallel import DDP, ZeroRedundancyOptimizer, comm_hooks
from lab.parallel.zero_gradients import ShardedBucket, cap_mb
from tests.ranks import RankPool

ADAM: dict[str, Any] = {"lr": 0.01}


class Net(nn.Module):
    """Uneven sizes, a scalar, channels_last, two dtypes, a frozen layer, tied weights.

    `sometimes` is used in one step of two and then by odd ranks only, or by all where there are
    fewer than two ranks.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(3, 5, 3)
        weight = self.conv.weight
        weight.data = weight.data.to(memory_format=torch.channels_last)
        self.wide = nn.Linear(20, 7).double()
        self.frozen = nn.Linear(7, 7).double().requires_grad_(False)
        self.sometimes = nn.Linear(7, 7).double()
        self.tied = nn.Linear(7, 7).double()
        self.again = nn.Linear(7, 7).double()
        self.again.weight = self.tied.weight
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, images: Tensor, uses: bool) -> Tensor:
        hidden: Tensor = self.frozen(self.wide(self.conv(images).flatten(1).double()))
        if uses:
            hidden = self.sometimes(hidden)
        result: Tensor = self.again(torch.tanh(self.tied(hidden))).float() * self.scale
        return result


def groups(model: nn.Module) -> list[dict[str, Any]]:
    named = list(model.named_parameters())
    return [
        {"params": [p for name, p in named if "weight" in name], "weight_decay": 0.1},
        {"params": [p for name, p in named if "weight" not in name]},
    ]


def loss_of(model: Callable[..., Tensor], rank: int, step: int, part: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(rank + 10 * step + 100 * part)
    uses = step == 1 and (rank % 2 == 1 or dist.get_world_size() == 1)
    return model(torch.randn(2, 3, 4, 4, generator=generator), uses).square().mean()


def one_process(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: range, parts: int, clip: float | None
) -> list[list[Tensor | None]]:
    """Accumulate all ranks' batches in rank order, divide, clip, step; each step's gradients."""
    size = dist.get_world_size()
    found = []
    for step in steps:
        total: dict[nn.Parameter, Tensor] = {}
        for rank in range(size):
            optimizer.zero_grad()
            for part in range(parts):
                loss_of(model, rank, step, part).backward()
            for p in model.parameters():
                if p.grad is not None:
                    total[p] = total[p] + p.grad if p in total else p.grad
        optimizer.zero_grad()
        for p, gradient in total.items():
            p.grad = gradient / size
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        found.append([p.grad for group in optimizer.param_groups for p in group["params"]])
        optimizer.step()
    return found


def sharded(
    model: DDP, zero: ZeroRedundancyOptimizer, steps: range, parts: int, clip: float | None
) -> list[list[Tensor | None]]:
    found = []
    for step in steps:
        zero.zero_grad()
        for part in range(parts):
            with model.no_sync() if part < parts - 1 else contextlib.nullcontext():
                loss_of(model, dist.get_rank(), step, part).backward()
        assert all(p.grad is None for p in model.parameters())
        if clip is not None:
            zero.clip_grad_norm_(clip)
        found.append(zero.whole_gradients())
        zero.step()
    return found


def same(
    found: list[list[Tensor | None]], expected: list[list[Tensor | None]], exact: bool
) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        for one, other in zip(ours, theirs, strict=True):
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                if exact:
                    assert torch.equal(one, other)
                torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)
                assert one.stride() == other.stride()


def train(cap: float, parts: int, clip: float | None) -> tuple[list[Tensor], int]:
    alone = Net()
    whole = torch.optim.AdamW(groups(alone), **ADAM)
    model = DDP(Net(dist.get_rank()), bucket_cap_mb=cap, find_unused_parameters=True)
    zero = ZeroRedundancyOptimizer(
        groups(model.module), torch.optim.AdamW, stage=2, model=model, **ADAM
    )
    expected = one_process(alone, whole, range(3), parts, clip)
    found = sharded(model, zero, range(3), parts, clip)
    same(found, expected, exact=clip is None)
    exact = 0.0 if clip is None else 1e-6
    for (name, a), b in zip(alone.named_parameters(), model.module.parameters(), strict=True):
        torch.testing.assert_close(b, a, rtol=exact, atol=exact, msg=name)
        assert a.stride() == b.stride()

    # The states are the whole optimiser's; they go to the bare one, and to another world size.
    zero.consolidate_state_dict(0)
    state = zero.state_dict() if dist.get_rank() == 0 else None
    rows = [state]
    dist.broadcast_object_list(rows, 0)
    state = rows[0]
    assert state is not None
    assert state["state"].keys() == whole.state_dict()["state"].keys()
    whole.load_state_dict(copy.deepcopy(state))
    alone.load_state_dict(model.state_dict())
    single = dist.new_group([0])
    if dist.get_rank() == 0:
        one = DDP(copy.deepcopy(alone), process_group=single, find_unused_parameters=True)
        again = ZeroRedundancyOptimizer(
            groups(one.module), torch.optim.AdamW, stage=2, model=one, **ADAM
        )
        again.load_state_dict(copy.deepcopy(state))
        for optimizer, net in ((whole, alone), (again, one)):
            optimizer.zero_grad()
            loss_of(net, 0, 3).backward()
            optimizer.step()
        for a, b in zip(alone.parameters(), one.module.parameters(), strict=True):
            assert torch.equal(a, b)
    return [p.detach().clone() for p in model.module.parameters()], len(model.reducer.buckets)


@pytest.mark.parametrize(
    ("cap", "parts", "clip"), [(25, 1, None), (0, 2, None), (0.0005, 1, 0.01), (0.0005, 1, 100.0)]
)
@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_training_is_bitwise_one_processs(
    ranks: RankPool, world_size: int, cap: float, parts: int, clip: float | None
) -> None:
    results = ranks.run(world_size, train, cap, parts, clip)
    for parameters, buckets in results:
        assert all(torch.equal(a, b) for a, b in zip(parameters, results[0][0], strict=True))
        if cap in (25, 0):
            assert buckets == (4 if cap else 10), "two groups of two dtypes; each by itself"


def layers() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 5), nn.Tanh(), nn.Linear(5, 3))


def step(model: Callable[..., Tensor], optimizer: torch.optim.Optimizer, number: int) -> None:
    generator = torch.Generator().manual_seed(100 * number + dist.get_rank())
    optimizer.zero_grad()
    model(torch.randn(4, 16, generator=generator)).square().mean().backward()
    optimizer.step()


def beside_torchs() -> tuple[list[Tensor], list[Tensor]]:
    from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZero  # slow, and warns

    found = []
    for ours in (True, False):
        bare = layers()
        if ours:
            model = DDP(bare)
            optimizer: torch.optim.Optimizer = ZeroRedundancyOptimizer(
                bare.parameters(), torch.optim.Adam, stage=2, model=model, lr=0.01
            )
            for number in range(3):
                step(model, optimizer, number)
        else:
            theirs = TorchDDP(bare)
            optimizer = TorchZero(bare.parameters(), torch.optim.Adam, lr=0.01)
            for number in range(3):
                step(theirs, optimizer, number)
        found.append([p.detach().clone() for p in bare.parameters()])
    return found[0], found[1]


@pytest.mark.parametrize("world_size", [2, 3])
def test_training_equals_torchs_zero(ranks: RankPool, world_size: int) -> None:
    for ours, theirs in ranks.run(world_size, beside_torchs):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


class Counted:
    """Counts what this rank's collectives send: all-to-all and all-gather, by size."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scattered = self.gathered = 0
        all_to_all, all_gather = dist.all_to_all_single, dist.all_gather
        others = (dist.get_world_size() - 1) / dist.get_world_size()

        def scatter(output: Tensor, tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.scattered += round(tensor.nbytes * others)
            return all_to_all(output, tensor, *args, **kwargs)

        def gather(parts: list[Tensor], tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            self.gathered += tensor.nbytes * (len(parts) - 1)
            return all_gather(parts, tensor, *args, **kwargs)

        def reduce(*_: Any, **__: Any) -> Any:
            raise AssertionError("nothing else is sent")

        monkeypatch.setattr(dist, "all_to_all_single", scatter)
        monkeypatch.setattr(dist, "all_gather", gather)
        monkeypatch.setattr(dist, "all_reduce", reduce)


def costs() -> dict[str, Any]:
    model = DDP(layers(), bucket_cap_mb=0.0001)
    zero = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, stage=2, model=model, lr=0.01
    )
    buckets = [bucket for bucket in model.reducer.buckets if isinstance(bucket, ShardedBucket)]
    peak = 0
    releases = ShardedBucket.pack

    def pack(bucket: ShardedBucket) -> None:
        nonlocal peak
        releases(bucket)
        whole = sum(one.buffer().untyped_storage().nbytes() for one in buckets)
        peak = max(peak, whole)

    with pytest.MonkeyPatch.context() as patch:
        counted = Counted(patch)
        patch.setattr(ShardedBucket, "pack", pack)
        step(model, zero, 0)
    held = zero.gradient_bytes()
    padding = [zero_part(bucket) for bucket in buckets]
    after = sum(bucket.buffer().untyped_storage().nbytes() for bucket in buckets)
    model.zero_grad()
    return {
        "sizes": [bucket.flat.gaps[-1].start for bucket in buckets],  # with gaps between parameters
        "scattered": counted.scattered,
        "gathered": counted.gathered,
        "peak": peak,
        "after": after,
        "held": held,
        "states": zero.state_bytes(),
        "padding": padding,
        "cleared": zero.gradient_bytes(),
    }


def zero_part(bucket: ShardedBucket) -> float:
    """Largest value in what is in this rank's part and of no parameter."""
    assert bucket.mine is not None
    rest = bucket.mine.clone()
    for piece in bucket.flat.pieces:
        rest[piece.place : piece.place + piece.end - piece.start] = 0
    return float(rest.abs().max())


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
def test_bytes_on_the_wire_and_in_memory(ranks: RankPool, world_size: int) -> None:
    for costs_of_rank in ranks.run(world_size, costs):
        parts = [-(-size // world_size) for size in costs_of_rank["sizes"]]
        assert len(parts) == 3
        assert costs_of_rank["scattered"] == (world_size - 1) * sum(parts) * 4
        assert costs_of_rank["gathered"] == (world_size - 1) * sum(parts) * 4
        assert costs_of_rank["held"] == sum(parts) * 4
        # Adam: two for each element of this rank, and a step counter for each piece of one.
        assert costs_of_rank["states"] <= 2 * sum(parts) * 4 + 6 * 4
        assert costs_of_rank["after"] == 0
        padded = sorted(world_size * part * 4 for part in parts)
        assert costs_of_rank["peak"] <= padded[-1] + padded[-2], "no third before one has gone"
        assert costs_of_rank["padding"] == [0.0] * 3
        assert costs_of_rank["cleared"] == 0


def test_buckets_are_a_sixteenth_of_the_gradients_at_most() -> None:
    four_mib = [nn.Parameter(torch.empty(1024, 1024))]
    assert cap_mb(four_mib, 25) == 4 / 16
    assert cap_mb(four_mib, 0.1) == 0.1, "the model's own cap"
    assert cap_mb([nn.Parameter(torch.empty(10))], 25) == 1 / 16, "messages have a price"


def accumulate() -> tuple[list[Tensor | None], list[Tensor | None]]:
    """Two backwards that both average add up; so do three with no_sync around the first."""
    found: list[list[Tensor | None]] = []
    for quiet in (False, True):
        model = DDP(layers())
        zero = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.SGD, stage=2, model=model, lr=0.5
        )
        inputs = torch.randn(4, 16, generator=torch.Generator().manual_seed(dist.get_rank()))
        with model.no_sync() if quiet else contextlib.nullcontext():
            model(inputs).square().mean().backward()
        model(inputs).square().mean().backward()
        found.append(zero.whole_gradients())
    return found[0], found[1]


def test_gradients_accumulate(ranks: RankPool) -> None:
    for twice, quiet in ranks.run(2, accumulate):
        for a, b in zip(twice, quiet, strict=True):
            assert a is not None
            assert b is not None
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def uneven(stage: int) -> list[Tensor]:
    """Rank r has r + 1 batches."""
    bare = layers()
    model = DDP(bare)
    more: dict[str, Any] = {"stage": 2, "model": model} if stage == 2 else {}
    zero = ZeroRedundancyOptimizer(bare.parameters(), torch.optim.Adam, lr=0.01, **more)
    with Join([model, zero]):
        for number in range(dist.get_rank() + 1):
            step(model, zero, number)
    return [p.detach().clone() for p in bare.parameters()]


def uneven_torch() -> list[Tensor]:
    """The whole optimiser: torch's ZeRO steps with old gradients on ranks without input."""
    bare = layers()
    model = TorchDDP(bare)
    optimizer = torch.optim.Adam(bare.parameters(), lr=0.01)
    with model.join():
        for number in range(dist.get_rank() + 1):
            step(model, optimizer, number)
    return [p.detach().clone() for p in bare.parameters()]


def all_uneven() -> list[list[Tensor]]:
    return [uneven(1), uneven(2), uneven_torch()]


def test_uneven_inputs_equal_the_whole_optimiser(ranks: RankPool) -> None:
    results = ranks.run(3, all_uneven)
    for first, second, theirs in results:
        for a, b, c, reference in zip(first, second, theirs, results[0][0], strict=True):
            torch.testing.assert_close(a, c, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(b, c, rtol=1e-5, atol=1e-6)
            assert torch.equal(a, reference), "ranks differ"


def norms() -> list[tuple[float, float]]:
    model = DDP(layers())
    zero = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, stage=2, model=model, lr=0.5
    )
    inputs = torch.randn(4, 16, generator=torch.Generator().manual_seed(dist.get_rank()))
    model(inputs).square().mean().backward()
    found = []
    for kind in (1.0, 2.0, float("inf")):
        whole = [g for g in zero.whole_gradients() if g is not None]
        expected = nn.utils.get_total_norm(whole, kind).item()
        norm = zero.clip_grad_norm_(expected / 2, kind).item()
        assert norm == pytest.approx(expected, rel=1e-5)
        whole = [g for g in zero.whole_gradients() if g is not None]
        assert nn.utils.get_total_norm(whole, kind).item() == pytest.approx(norm / 2, rel=1e-4)
        found.append((norm, expected))
    return found


def test_clipping_uses_the_norm_of_all_parts(ranks: RankPool) -> None:
    results = ranks.run(3, norms)
    assert [result == results[0] for result in results] == [True] * 3


def norm_of_one_number() -> float:
    """Most ranks have no piece, and the others one of another dtype than the first bucket's."""
    bare = nn.ModuleDict({"one": nn.Linear(1, 1, bias=False), "two": nn.Linear(1, 1, bias=False)})
    bare["two"].double()
    model = DDP(Two(bare))
    zero = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, stage=2, model=model, lr=1.0
    )
    model(torch.full((1, 1), 3.0)).backward()
    return zero.clip_grad_norm_(1.0).item()


class Two(nn.Module):
    def __init__(self, parts: nn.ModuleDict) -> None:
        super().__init__()
        self.parts = parts

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.parts["one"](inputs) + self.parts["two"](4 / 3 * inputs.double())
        return result.sum()


def test_clipping_where_ranks_have_no_part(ranks: RankPool) -> None:
    assert ranks.run(3, norm_of_one_number) == [pytest.approx(5.0)] * 3


def refusals() -> list[str]:
    bare = layers()
    model = DDP(bare)
    hooked = DDP(layers())
    hooked.register_comm_hook(None, comm_hooks.allreduce_hook)
    extra = nn.Parameter(torch.zeros(2))
    other = dist.new_group([0])

    def make(params: Any, **options: Any) -> ZeroRedundancyOptimizer:
        return ZeroRedundancyOptimizer(params, torch.optim.SGD, lr=1.0, **options)

    def never_averaged() -> None:
        zero = make(bare.parameters(), stage=2, model=model)
        with model.no_sync():
            model(torch.ones(1, 16)).sum().backward()
        zero.step()

    calls: list[Callable[[], Any]] = [
        lambda: make(bare.parameters(), stage=3, model=model),
        lambda: make(bare.parameters(), stage=2),
        lambda: make(bare.parameters(), stage=2, model=TorchDDP(layers())),
        lambda: make(bare.parameters(), model=model),
        lambda: make(bare.parameters(), stage=2, model=model, process_group=other),
        lambda: make(bare[0].parameters(), stage=2, model=model),
        lambda: make([*bare.parameters(), extra], stage=2, model=model),
        lambda: make(hooked.parameters(), stage=2, model=hooked),
        never_averaged,
        lambda: model.register_comm_hook(None, comm_hooks.allreduce_hook),
        lambda: make(bare.parameters(), stage=2, model=model),
    ]
    messages = []
    for call in calls:
        with pytest.raises((ValueError, RuntimeError)) as caught:
            call()
        messages.append(str(caught.value))
    return messages


def test_what_cannot_be_is_refused_in_words(ranks: RankPool) -> None:
    expected = [
        "no stage 3 here, only 1 and 2: FullyShardedDataParallel",
        "stage 2 needs model=, a DistributedDataParallel of lab.parallel",
        "stage 2 needs model=, a DistributedDataParallel of lab.parallel",
        "model= is for stage 2",
        "process_group must be the model's, or left out",
        "stage 2 takes all trained parameters of the model, and 2.weight is not given",
        "stage 2 takes the model's parameters only: one of [2] is not",
        "stage 2 averages by itself: register no communication hook",
        "the gradient of 0.weight was never averaged: leave no_sync() for the last",
        "register_comm_hook can be called once only",
        "stage 2 averages by itself",
    ]
    messages = ranks.run(1, refusals)[0]
    for message, beginning in zip(messages, expected, strict=True):
        assert message.startswith(beginning)
