"""DistributedDataParallel among real ranks, against one process and against torch's."""

import contextlib
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.utils.checkpoint import checkpoint

from lab.parallel import DDP, FSDP, SyncBatchNorm, comm_hooks
from tests.parallel.one_process import accumulate
from tests.ranks import RankPool

WORLD_SIZES = (1, 2, 3, 4)
STEPS = 3


class Net(nn.Module):
    """What makes trouble: tied weights, a frozen layer, two dtypes, channels_last, a scalar."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.conv = nn.Conv2d(3, 8, 3)
        weight = self.conv.weight
        weight.data = weight.data.to(memory_format=torch.channels_last)
        self.first = nn.Linear(32, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.wide = nn.Linear(16, 16).double()
        self.again = nn.Linear(16, 16)
        self.last = nn.Linear(16, 16)
        self.last.weight = self.again.weight
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(self.conv(images).flatten(1)))
        hidden = self.wide(self.frozen(hidden).double()).float()
        result: Tensor = self.last(torch.tanh(self.again(hidden))) * self.scale
        return result


def batch(rank: int, step: int, part: int = 0, size: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1 + rank + 10 * step + 100 * part)
    return (
        torch.randn(size, 3, 4, 4, generator=generator),
        torch.randn(size, 16, generator=generator),
    )


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    trained = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(trained, lr=0.1, momentum=0.9)


def one_process(world_size: int, parts: int) -> dict[str, Tensor]:
    """Accumulate all ranks' batches in rank order, divide, step."""
    model = Net(seed=0)
    optimizer = sgd(model)
    accumulate(model, optimizer, batch, steps=STEPS, world_size=world_size, parts=parts)
    return model.state_dict()


OPTIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "a bucket each": {"bucket_cap_mb": 0},
    "1 KiB buckets": {"bucket_cap_mb": 1 / 1024},
    "find unused": {"bucket_cap_mb": 1 / 1024, "find_unused_parameters": True},
    "static": {"bucket_cap_mb": 1 / 1024, "static_graph": True},
    "avg": {"mean": "avg"},
    "divide first": {"mean": "divide_then_sum"},
}


def train(options: dict[str, Any], parts: int, ordered: bool) -> dict[str, Tensor]:
    model = DDP(Net(seed=dist.get_rank()), **options)
    if ordered:
        model.register_comm_hook(None, comm_hooks.ordered_hook)
    optimizer = sgd(model)
    for step in range(STEPS):
        # Every second step keeps the views: gradients are then added inside the buckets.
        optimizer.zero_grad(set_to_none=step != 1)
        for part in range(parts):
            last = part == parts - 1
            with contextlib.nullcontext() if last else model.no_sync():
                inputs, targets = batch(dist.get_rank(), step, part)
                mse_loss(model(inputs), targets).backward()
        optimizer.step()
    state: dict[str, Tensor] = model.state_dict()
    return state


Trained = dict[tuple[str, int, bool], dict[str, Tensor]]


def train_all() -> tuple[Trained, dict[int, dict[str, Tensor]]]:
    """The one process is each rank for itself: here, with the same number of threads."""
    references = {parts: one_process(dist.get_world_size(), parts) for parts in (1, 2)}
    return {
        (name, parts, ordered): train(options, parts, ordered)
        for name, options in OPTIONS.items()
        for parts in (1, 2)
        for ordered in (False, True)
    }, references


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_training_equals_one_process(ranks: RankPool, world_size: int) -> None:
    results = ranks.run(world_size, train_all)
    trained, expected = results[0]
    for (name, parts, ordered), state in trained.items():
        assert state.keys() == expected[parts].keys()
        for key, reference in expected[parts].items():
            what = f"{name}, {parts} parts, ordered {ordered}: {key}"
            torch.testing.assert_close(state[key], reference, rtol=1e-6, atol=1e-6, msg=what)
            if ordered or world_size <= 2:
                assert torch.equal(state[key], reference), what
            for result, _ in results:
                assert torch.equal(result[name, parts, ordered][key], state[key]), what


def means_of_large_numbers() -> dict[str, float]:
    """Two gradients of 40000 each in float16, whose largest number is 65504."""
    found = {}
    for mean in ("sum_then_divide", "avg", "divide_then_sum"):
        layer = nn.Linear(1, 1, bias=False).half()
        DDP(layer, mean=mean)(torch.full((1, 1), 40000.0).half()).sum().backward()
        assert layer.weight.grad is not None
        found[mean] = layer.weight.grad.item()
    return found


def test_a_mean_that_divides_first_cannot_overflow(ranks: RankPool) -> None:
    for found in ranks.run(2, means_of_large_numbers):
        assert found["divide_then_sum"] == 40000.0
        assert found["sum_then_divide"] == float("inf"), "as one process that accumulates"


class Normed(nn.Module):
    """With buffers: float statistics and an int64 counter."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, inputs: Tensor) -> dict[str, tuple[Tensor]]:
        return {"logits": (self.body(inputs),)}


def train_normed(kind: Callable[..., nn.Module], **options: Any) -> dict[str, Tensor]:
    rank = dist.get_rank()
    model = kind(Normed(seed=rank), **options)
    optimizer = sgd(model)
    for step in range(STEPS):
        inputs = batch(rank, step)[1]
        optimizer.zero_grad()
        model(inputs)["logits"][0].square().mean().backward()
        optimizer.step()
    bare = model.get_submodule("module") if kind is TorchDDP else model
    state: dict[str, Tensor] = bare.state_dict()
    return state


def two_forwards() -> tuple[list[Tensor], list[Tensor]]:
    """Buffers that backward needs: a constant, and statistics."""

    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
            self.register_buffer("scale", torch.arange(4.0))

        def forward(self, inputs: Tensor) -> Tensor:
            scaled: Tensor = self.layers(inputs) * self.scale
            return scaled

    results = []
    for kind in (DDP, TorchDDP):
        model = kind(Pair())
        generator = torch.Generator().manual_seed(dist.get_rank())
        for _ in range(2):
            one, other = torch.randn(2, 5, 3, generator=generator)
            (model(one) - model(other)).square().sum().backward()
        results.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    return results[0], results[1]


def test_several_forwards_may_come_before_a_backward(ranks: RankPool) -> None:
    for ours, torchs in ranks.run(2, two_forwards):
        for mine, other in zip(ours, torchs, strict=True):
            torch.testing.assert_close(mine, other)


def against_torch() -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    return [
        (train_normed(DDP, **options), train_normed(TorchDDP, **options))
        for options in (
            {},
            {"forward_sync_buffers": False},
            {"batched_grad_copy": True, "dim": 0, "device_mesh": None},
        )
    ]


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_training_with_buffers_equals_torchs_ddp(ranks: RankPool, world_size: int) -> None:
    for result in ranks.run(world_size, against_torch):
        for ours, theirs in result:
            assert "body.1.num_batches_tracked" in ours
            for key, expected in theirs.items():
                if world_size <= 2:
                    assert torch.equal(ours[key], expected), key
                else:
                    torch.testing.assert_close(ours[key], expected, rtol=1e-6, atol=1e-6)


class Branches(nn.Module):
    """Forward calls the named branches in the given order."""

    def __init__(self) -> None:
        super().__init__()
        for name in "abcd":
            layer = nn.Linear(1, 1, bias=False)
            nn.init.ones_(layer.weight)
            self.add_module(name, layer)

    def forward(self, inputs: Tensor, order: str) -> Tensor:
        return sum((self.get_submodule(name)(inputs) for name in order), torch.zeros(1))


def unused(kind: Callable[..., nn.Module], static: bool) -> list[list[float | None]]:
    """a: all ranks; b: rank 1 only; c: nobody; d: all but rank 0."""
    model = kind(
        Branches(), find_unused_parameters=not static, static_graph=static, bucket_cap_mb=0
    )
    order = ["a", "dba", "da", "ad"][dist.get_rank()]
    found = []
    for _ in range(2):
        model.zero_grad()
        model(torch.full((1, 1), dist.get_rank() + 1.0), order).sum().backward()
        found.append([None if p.grad is None else p.grad.item() for p in model.parameters()])
    return found


def unused_everywhere() -> list[list[list[float | None]]]:
    return [unused(DDP, False), unused(TorchDDP, False), unused(DDP, True)]


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_unused_parameters(ranks: RankPool, world_size: int) -> None:
    n = world_size
    a = sum(range(1, n + 1)) / n
    b = 2 / n if n > 1 else None
    d = sum(range(2, n + 1)) / n if n > 1 else None
    for ours, theirs, static in ranks.run(world_size, unused_everywhere):
        assert ours == [[a, b, None, d]] * 2
        assert ours == theirs
        assert static == ours


def hang(guard: bool) -> tuple[str, str]:
    """Rank 1 leaves c out. Rank 0 must not wait for ever either: it leaves out c as well."""
    model = DDP(Branches(), bucket_cap_mb=0, hang_guard=guard)
    output = model(torch.ones(1, 1), "abd").sum()
    first = ""
    if guard:
        with pytest.raises(RuntimeError) as caught:
            output.backward()
        first = str(caught.value)
    else:
        output.backward()
    with pytest.raises(RuntimeError) as caught:
        model(torch.ones(1, 1), "abcd")
    return first, str(caught.value)


def test_the_hang_guard_names_rank_and_parameter(ranks: RankPool) -> None:
    for rank, (first, second) in enumerate(ranks.run(2, hang, True)):
        assert first.startswith(f"rank {rank}: no gradient for c.weight, so the other ranks would")
        assert "find_unused_parameters=True" in first
        assert second.startswith(
            f"rank {rank}: the last backward did not finish: no gradient for c"
        )
    for rank, (first, second) in enumerate(ranks.run(2, hang, False)):
        assert first == ""
        assert second == (
            f"rank {rank}: the last backward did not finish: no gradient for c.weight"
        )


def hang_on_rank_1(guard: bool) -> str:
    """Only rank 1 leaves c out. Rank 0 waits until rank 1 is gone or the group's time-out."""
    group = dist.new_group(timeout=timedelta(seconds=1))
    model = DDP(Branches(), bucket_cap_mb=0, hang_guard=guard, process_group=group)
    output = model(torch.ones(1, 1), "abcd" if dist.get_rank() == 0 else "abd").sum()
    try:
        output.backward()
    except RuntimeError as error:
        return str(error)
    return "backward returned"


@pytest.mark.parametrize("guard", [True, False])
def test_the_hang_guard_speaks_on_the_rank_where_it_is_so(ranks: RankPool, guard: bool) -> None:
    waiting, guilty = ranks.run(2, hang_on_rank_1, guard)
    assert "/gloo/" in waiting, "an error of the connection, in whichever words"
    if guard:
        assert guilty.startswith("rank 1: no gradient for c.weight")
    else:
        assert guilty == "backward returned", "as under torch's DDP"


def freeze_afterwards() -> str:
    model = DDP(Branches())
    model.module.get_parameter("a.weight").requires_grad_(False)
    with pytest.raises(RuntimeError) as caught:
        model(torch.ones(1, 1), "abcd").sum().backward()
    return str(caught.value)


def test_a_parameter_frozen_too_late_is_named(ranks: RankPool) -> None:
    assert (
        "a.weight was frozen after the model had been wrapped" in ranks.run(1, freeze_afterwards)[0]
    )


def unfreeze_afterwards() -> str:
    model = DDP(nn.Sequential(nn.Linear(2, 2).requires_grad_(False), nn.Linear(2, 2)))
    model(torch.ones(1, 2)).sum().backward()
    model.requires_grad_(True)
    with pytest.raises(RuntimeError) as error:
        model(torch.ones(1, 2))
    return str(error.value)


def test_a_parameter_unfrozen_too_late_is_named(ranks: RankPool) -> None:
    for message in ranks.run(2, unfreeze_afterwards):
        assert message.startswith("0.weight was unfrozen after the model had been wrapped")


def order_of_buckets() -> tuple[list[int], list[int]]:
    """Branches become ready in another order on each rank."""
    model = DDP(Branches(), bucket_cap_mb=0)
    sent: list[int] = []
    present: list[int] = []

    def hook(state: None, bucket: Any) -> comm_hooks.Pending:
        sent.append(bucket.index())
        present.append(sum(p.grad is not None for p in model.parameters()))
        return comm_hooks.allreduce_hook(state, bucket)

    model.register_comm_hook(None, hook)
    order = ["abcd", "dcba"][dist.get_rank()]
    model(torch.ones(1, 1), order).sum().backward()
    return sent, present


def test_buckets_leave_during_backward_in_one_order_on_all_ranks(ranks: RankPool) -> None:
    (first, early), (second, late) = ranks.run(2, order_of_buckets)
    assert first == second == [0, 1, 2, 3]
    assert early == [1, 2, 3, 4], "each when its gradient is there"
    assert late == [4, 4, 4, 4], "held back until the first in the order is there"


class Noted:
    """A bucket under way, which notes when it is waited for."""

    def __init__(self, pending: comm_hooks.Pending, index: int, events: list[tuple[str, int]]):
        self._pending, self._index, self._events = pending, index, events
        events.append(("sent", index))

    def wait(self) -> Tensor:
        self._events.append(("received", self._index))
        return self._pending.wait()


def under_way(options: dict[str, Any]) -> list[tuple[str, int]]:
    events: list[tuple[str, int]] = []
    model = DDP(nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(5))), **options)
    model.register_comm_hook(
        None,
        lambda state, bucket: Noted(
            comm_hooks.allreduce_hook(state, bucket), bucket.index(), events
        ),
    )
    for _ in range(2):
        events.clear()
        model(torch.ones(1, 1)).sum().backward()
    return events


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}, {"static_graph": True}])
def test_two_buckets_travel_at_a_time_and_each_is_waited_for_once(
    ranks: RankPool, options: dict[str, Any]
) -> None:
    for events in ranks.run(2, under_way, {"bucket_cap_mb": 0, **options}):
        assert events == [
            *(("sent", 0), ("sent", 1)),
            *(("received", 0), ("sent", 2)),
            *(("received", 1), ("sent", 3)),
            *(("received", 2), ("sent", 4)),
            *(("received", 3), ("received", 4)),
        ]


def different(what: str) -> str:
    model: nn.Module = Branches()
    options: dict[str, Any] = {}
    if dist.get_rank() == 2:
        layer = nn.Linear(1, 1, bias=False)
        if what == "name":
            model.e = layer
        elif what == "shape":
            model.b = nn.Linear(2, 1, bias=False)
        elif what == "dtype":
            model.b = layer.double()
        elif what == "order":
            model.a, model.b = model.b, model.a
            model._modules = dict(reversed(model._modules.items()))
        elif what == "frozen":
            model.get_parameter("b.weight").requires_grad_(False)
        elif what == "buffer":
            model.register_buffer("count", torch.zeros(1))
        elif what == "option":
            options["bucket_cap_mb"] = 1
    with pytest.raises(ValueError, match="not the same on all ranks") as caught:
        DDP(model, **options)
    return str(caught.value).removeprefix("the model is not the same on all ranks: ")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("name", "parameter e.weight: float32 [1, 1] on cpu; rank 0 has no more"),
        ("shape", "parameter b.weight: float32 [1, 2] on cpu; rank 0 has parameter b.weight: "),
        ("dtype", "parameter b.weight: float64 [1, 1] on cpu; rank 0 has parameter b.weight: "),
        ("order", "parameter d.weight: float32 [1, 1] on cpu; rank 0 has parameter a.weight: "),
        ("frozen", "parameter b.weight: float32 [1, 1] on cpu, needs no gradient; rank 0 has "),
        ("buffer", "buffer count: float32 [1] on cpu; rank 0 has no more"),
        ("option", "option bucket_cap_mb: 1.0; rank 0 has option bucket_cap_mb: None"),
    ],
)
def test_ranks_with_different_models_are_told_so(ranks: RankPool, what: str, message: str) -> None:
    for text in ranks.run(4, different, what):
        assert text.startswith(f"rank 2 has {message}")


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool, twice: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.reentrant, self.twice = reentrant, twice
        self.outside, self.inside = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, inputs: Tensor) -> Tensor:
        inputs = self.outside(inputs)
        for _ in range(2 if self.twice else 1):
            inputs = checkpoint(self.inside, inputs, use_reentrant=self.reentrant)
        return inputs


def checkpoints() -> Iterator[tuple[bool, bool, dict[str, Any]]]:
    for reentrant in (True, False):
        for twice in (True, False):
            for options in ({}, {"static_graph": True}, {"find_unused_parameters": True}):
                if not (reentrant and twice and not options.get("static_graph")):
                    yield reentrant, twice, {**options, "bucket_cap_mb": 0}


def train_checkpointed() -> list[list[Tensor]]:
    found = []
    for reentrant, twice, options in checkpoints():
        model = DDP(Checkpointed(reentrant, twice), **options)
        for _ in range(2):  # a static graph is known from the second step on
            model.zero_grad()
            model(batch(dist.get_rank(), 0)[1]).square().mean().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    return found


def test_checkpointing_of_both_kinds(ranks: RankPool) -> None:
    results = ranks.run(2, train_checkpointed)
    for index, (reentrant, twice, _) in enumerate(checkpoints()):
        model = Checkpointed(reentrant, twice)
        gradients = []
        for rank in range(2):
            model.zero_grad()
            model(batch(rank, 0)[1]).square().mean().backward()
            gradients.append([p.grad for p in model.parameters() if p.grad is not None])
        expected = [(a + b) / 2 for a, b in zip(*gradients, strict=True)]
        for result in results:
            assert len(result[index]) == 4
            assert all(torch.equal(a, b) for a, b in zip(result[index], expected, strict=True))


def reentrant_twice() -> str:
    model = DDP(Checkpointed(reentrant=True, twice=True), bucket_cap_mb=0)
    with pytest.raises(RuntimeError) as caught:
        model(batch(0, 0)[1]).sum().backward()
    return str(caught.value)


def test_two_gradients_from_reentrant_checkpoints_are_refused_with_the_cure(
    ranks: RankPool,
) -> None:
    message = ranks.run(1, reentrant_twice)[0]
    assert message.startswith("rank 0: inside.bias got a gradient when none was awaited")
    assert "use_reentrant=False" in message
    assert "static_graph=True" in message


def graph_that_changes(second: str) -> str:
    model = DDP(Branches(), static_graph=True, bucket_cap_mb=0)
    model(torch.ones(1, 1), "abc").sum().backward()
    with pytest.raises(RuntimeError) as caught:
        model(torch.ones(1, 1), second).sum().backward()
    return str(caught.value)


@pytest.mark.parametrize("second", ["ab", "abcd"])
def test_a_static_graph_that_changes_is_an_error(ranks: RankPool, second: str) -> None:
    message = ranks.run(1, graph_that_changes, second)[0]
    assert f"{'c' if second == 'ab' else 'd'}.weight" in message
    assert "leave static_graph=True out" in message


def no_syncs() -> dict[str, Any]:
    rank = dist.get_rank()
    model = DDP(Branches())

    def step(inside: float | None = None) -> list[float]:
        return [p.grad.item() for p in model.parameters() if p.grad is not None]

    found: dict[str, Any] = {}
    with pytest.raises(KeyError), model.no_sync(), model.no_sync():
        raise KeyError
    inputs = torch.full((1, 1), float(rank))
    model(inputs, "abcd").sum().backward()
    found["after an exception"] = step()
    model.zero_grad()
    with model.no_sync():
        model(inputs, "abcd").sum().backward()
    found["inside"] = step()
    model.zero_grad()
    with model.no_sync():
        output = model(inputs, "abcd").sum()
    output.backward()
    found["forward inside"] = step()
    model.zero_grad()
    output = model(inputs, "abcd").sum()
    with model.no_sync(), pytest.warns(UserWarning, match="forward was outside"):
        output.backward()
    found["backward inside"] = step()
    model.zero_grad()
    model(inputs, "abcd").sum().backward(retain_graph=True)
    with torch.no_grad():
        model(inputs, "a")  # an evaluation in between, by all or by one
    found["twice"] = step()
    return found


def test_no_sync(ranks: RankPool) -> None:
    for rank, found in enumerate(ranks.run(3, no_syncs)):
        assert found == {
            "after an exception": [1.0] * 4,
            "inside": [float(rank)] * 4,
            "forward inside": [float(rank)] * 4,
            "backward inside": [1.0] * 4,
            "twice": [1.0] * 4,
        }


KEPT: list[Any] = []


def compressed() -> dict[str, list[Tensor]]:
    hooks: dict[str, tuple[Callable[[], Any], Any]] = {
        "ours fp16": (lambda: None, comm_hooks.fp16_compress_hook),
        "ours bf16": (lambda: None, comm_hooks.bf16_compress_hook),
        "torch's fp16": (lambda: None, default_hooks.fp16_compress_hook),
        "torch's bf16": (lambda: None, default_hooks.bf16_compress_hook),
        "torch's allreduce": (lambda: None, default_hooks.allreduce_hook),
        "ours allreduce": (lambda: None, comm_hooks.allreduce_hook),
        "torch's PowerSGD": (
            lambda: powerSGD_hook.PowerSGDState(
                dist.group.WORLD, matrix_approximation_rank=16, start_powerSGD_iter=2
            ),
            powerSGD_hook.powerSGD_hook,
        ),
    }
    # Else PowerSGD's callbacks, on gloo's thread, may be the last to hold the group: an abort.
    KEPT.append(dist.group.WORLD)
    found = {}
    for name, (state, hook) in hooks.items():
        torch.manual_seed(0)
        cap = 25 if "Power" in name else 0.002
        model = DDP(nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 16)), bucket_cap_mb=cap)
        model.register_comm_hook(state(), hook)
        for _ in range(4):
            model.zero_grad()
            model(batch(dist.get_rank(), 0)[1]).square().mean().backward()
        found[name] = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    with pytest.raises(RuntimeError, match="once only"):
        model.register_comm_hook(None, comm_hooks.allreduce_hook)
    return found


def test_communication_hooks_ours_and_torchs(ranks: RankPool) -> None:
    first, second = ranks.run(2, compressed)
    exact = first["ours allreduce"]
    for name, gradients in first.items():
        assert len(gradients) == 4
        for gradient, reference, other in zip(gradients, exact, second[name], strict=True):
            assert torch.equal(gradient, other), name
            loose = 1e-2 if "16" in name or "Power" in name else 0
            torch.testing.assert_close(gradient, reference, rtol=loose, atol=loose, msg=name)
    for dtype in ("fp16", "bf16"):
        pairs = zip(first[f"ours {dtype}"], first[f"torch's {dtype}"], strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
        assert not torch.equal(first[f"ours {dtype}"][0], exact[0]), "nothing was compressed"


def uneven(kind: Callable[..., Any], initial: bool, extra: int) -> dict[str, Tensor]:
    """Rank r has r + extra batches."""
    rank = dist.get_rank()
    model = kind(Normed(seed=rank), bucket_cap_mb=0.0001)
    optimizer = sgd(model)
    with model.join(divide_by_initial_world_size=initial):
        for step in range(rank + extra):
            optimizer.zero_grad()
            model(batch(rank, step)[1])["logits"][0].square().mean().backward()
            optimizer.step()
    state: dict[str, Tensor] = model.module.state_dict()
    return state


def uneven_both() -> list[tuple[dict[str, Tensor], dict[str, Tensor]]]:
    return [
        (uneven(DDP, initial, extra), uneven(TorchDDP, initial, extra))
        for initial in (True, False)
        for extra in (0, 2)
    ]


def test_uneven_inputs_equal_torchs(ranks: RankPool) -> None:
    results = ranks.run(3, uneven_both)
    for index, (ours, theirs) in enumerate(results[0]):
        for key, expected in theirs.items():
            torch.testing.assert_close(ours[key], expected, rtol=1e-5, atol=1e-6)
            for result in results:
                assert torch.equal(result[index][0][key], ours[key]), key


def uneven_with_no_sync() -> list[float]:
    """Rank 1 accumulates twice before each averaging, and has more steps."""
    rank = dist.get_rank()
    model = DDP(Branches(), find_unused_parameters=True)
    with model.join():
        for _ in range(1 + rank):
            model.zero_grad()
            with model.no_sync():
                model(torch.full((1, 1), float(rank)), "ab").sum().backward()
            model(torch.full((1, 1), float(rank)), "ab").sum().backward()
            with torch.no_grad():
                model(torch.ones(1, 1), "abcd")
    return [-1 if p.grad is None else p.grad.item() for p in model.parameters()]


def test_uneven_inputs_with_accumulation_and_unused_parameters(ranks: RankPool) -> None:
    assert ranks.run(2, uneven_with_no_sync)[1] == [1.0, 1.0, -1, -1]


def stop_early() -> str:
    model = DDP(Branches())

    def train() -> None:
        with model.join(throw_on_early_termination=True):
            for _ in range(1 + dist.get_rank()):
                model(torch.ones(1, 1), "abcd").sum().backward()

    with pytest.raises(RuntimeError) as caught:
        train()
    return str(caught.value)


def test_uneven_inputs_can_be_an_error(ranks: RankPool) -> None:
    first, second = ranks.run(2, stop_early)
    assert "Rank 0 exhausted all inputs" in first
    assert "at least one rank that exhausted inputs" in second


def odds_and_ends() -> None:
    # The state is the bare model's, also where the wrapper is a part of a larger module.
    model = DDP(Normed(seed=1))
    bare, other = Normed(seed=2), Normed(seed=3)
    bare.load_state_dict(model.state_dict())
    model.load_state_dict(other.state_dict())
    assert all(
        torch.equal(value, other.state_dict()[key]) for key, value in model.state_dict().items()
    )
    whole = nn.ModuleDict({"part": model})
    saved = {key: value.clone() for key, value in whole.state_dict().items()}
    assert "part.body.0.weight" in saved
    bare_whole = nn.ModuleDict({"part": bare})
    bare_whole.load_state_dict(saved)
    whole.load_state_dict(bare_whole.state_dict())
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict({})

    short = {key: value for key, value in saved.items() if key != "part.body.3.bias"}
    with pytest.raises(RuntimeError, match=r'"part\.body\.3\.bias"'):
        whole.load_state_dict(short)
    with pytest.raises(RuntimeError, match=r"size mismatch for part\.body\.3\.bias"):
        whole.load_state_dict({**saved, "part.body.3.bias": torch.zeros(9)})

    # So is what torch's class saves, as a whole and as a part.
    torchs = TorchDDP(other)
    assert "module.body.0.weight" in torchs.state_dict()
    model.load_state_dict(torchs.state_dict())
    whole.load_state_dict(nn.ModuleDict({"part": torchs}).state_dict())
    assert "module.body.0.weight" in torchs.state_dict()

    # Versions of layers are found: BatchNorm's from before it counted batches lacks a key.
    old = bare.state_dict()
    del old["body.1.num_batches_tracked"]
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(old)
    vars(old)["_metadata"]["body.1"]["version"] = 1
    model.load_state_dict(old)

    # Gradients are views of buckets.
    layer = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model = DDP(layer)
    model(torch.ones(1, 4)).sum().backward()
    storages = {
        p.grad.untyped_storage().data_ptr() for p in layer.parameters() if p.grad is not None
    }
    assert len(storages) == 1

    # Wrapped anew: the old wrapper's hooks are gone with it.
    del model
    model = DDP(layer)
    calls: list[int] = []

    def hook(state: None, bucket: Any) -> comm_hooks.Pending:
        calls.append(bucket.index())
        return comm_hooks.allreduce_hook(state, bucket)

    model.register_comm_hook(None, hook)
    model.zero_grad()
    model(torch.ones(1, 4)).sum().backward()
    assert calls == [0]
    assert all(len(p._post_accumulate_grad_hooks) == 1 for p in layer.parameters())

    # A gradient penalty: torch.autograd.grad goes through the outputs and ends without gradients.
    model.zero_grad()
    inputs = torch.ones(1, 4, requires_grad=True)
    output = model(inputs).square().sum()
    (slope,) = torch.autograd.grad(output, inputs, create_graph=True)
    assert calls == [0]
    (output + slope.square().sum()).backward()
    assert calls == [0, 0]


def test_odds_and_ends(ranks: RankPool) -> None:
    ranks.run(1, odds_and_ends)


def refused() -> list[str]:
    class Direct(nn.Module):
        def __init__(self, parameter: nn.Parameter) -> None:
            super().__init__()
            self.weight = parameter

    calls: list[Callable[[], Any]] = [
        lambda: DDP(nn.Linear(2, 2).requires_grad_(False)),
        lambda: DDP(nn.LazyLinear(2)),
        lambda: DDP(Direct(nn.Parameter(torch.zeros(2, dtype=torch.complex64)))),
        lambda: DDP(nn.Linear(2, 2), bucket_cap_mb=-1),
        lambda: DDP(nn.Linear(2, 2), device_ids=[0]),
        lambda: (
            DDP(nn.Sequential(nn.Embedding(4, 2, sparse=True)))(torch.tensor([1])).sum().backward()
        ),
        lambda: __import__("copy").deepcopy(DDP(nn.Linear(2, 2))),
        lambda: DDP(nn.Sequential(nn.Linear(2, 2), SyncBatchNorm(2))).join(),
        lambda: DDP(nn.Linear(2, 2), mixed_precision=object()),
        lambda: DDP(nn.Linear(2, 2), find_unused=True),
    ]
    messages = []
    for call in calls:
        with pytest.raises((ValueError, TypeError)) as caught:
            call()
        messages.append(f"{caught.type.__name__}: {caught.value}")
    return messages


def outside_of_the_group() -> list[str]:
    group = dist.new_group([0])
    messages = []
    for kind in (DDP, FSDP):
        if dist.get_rank() == 1:
            with pytest.raises(ValueError, match="not in process_group") as caught:
                kind(nn.Linear(2, 2), process_group=group)
            messages.append(str(caught.value))
    return messages


def test_ranks_outside_of_the_group_are_told_so(ranks: RankPool) -> None:
    assert [len(messages) for messages in ranks.run(2, outside_of_the_group)] == [0, 2]


def test_what_cannot_be_is_refused_in_words(ranks: RankPool) -> None:
    messages = ranks.run(1, refused)[0]
    expected = [
        "ValueError: no parameter needs a gradient",
        "ValueError: weight has no shape yet",
        "TypeError: weight is complex",
        "ValueError: bucket_cap_mb must be at least 0, found -1",
        "ValueError: the model is on cpu, but device_ids or output_device: cuda:0",
        "TypeError: the gradient of 0.weight is sparse",
        "TypeError: a DistributedDataParallel cannot be copied or pickled",
        "ValueError: 1 is a SyncBatchNorm, whose forward waits for all ranks",
        "ValueError: mixed_precision is not supported: use torch.autocast",
        "TypeError: DistributedDataParallel has no argument 'find_unused'",
    ]
    for message, beginning in zip(messages, expected, strict=True):
        assert message.startswith(beginning)
