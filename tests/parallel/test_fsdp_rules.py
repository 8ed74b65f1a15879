"""What FullyShardedDataParallel promises of bytes, memory, order and errors, among real ranks."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp.wrap import (
    ModuleWrapPolicy,
)

from lab.parallel import FSDP, ShardingStrategy
from lab.parallel.exchange import WINDOW
from tests.ranks import RankPool

KEPT = ShardingStrategy.SHARD_GRAD_OP


class Chain(nn.Module):
    """Three equal layers, of which each rank may leave some out."""

    def __init__(self, seed: int = 0, width: int = 10) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))

    def forward(self, inputs: Tensor, order: tuple[int, ...] = (0, 1, 2)) -> Tensor:
        for number in order:
            inputs = torch.tanh(self.layers[number](inputs))
        return inputs


def sharded_chain(**options: Any) -> FSDP:
    return FSDP(Chain(), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), **options)


def inputs(step: int = 0, width: int = 10) -> Tensor:
    generator = torch.Generator().manual_seed(dist.get_rank() + 10 * step)
    return torch.randn(4, width, generator=generator)


def gradients(model: FSDP) -> dict[str, Tensor]:
    """Whole, by name."""
    with FSDP.summon_full_params(model, writeback=False, with_grads=True):
        return {
            name: p.grad.detach().clone()
            for name, p in model.named_parameters()
            if p.grad is not None
        }


def mean_of_ranks(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    """What the gradients should be: the mean in rank order, zeros for what is missing."""
    loss.backward()
    result = {}
    for name, parameter in model.named_parameters():
        own = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, own.contiguous())
        result[name] = sum(parts[1:], start=parts[0]) / len(parts)
    return result


def equal(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


# Bytes and memory.


def padded(model: nn.Module, world_size: int) -> int:
    """Elements of a layer's flat parameter: 100 weights, aligned to 16, and 10 biases."""
    return -(-(112 + 10) // world_size) * world_size


def count(options: dict[str, Any]) -> list[tuple[int, int, int, int]]:
    found = []
    wire = 0
    names = ("all_gather", "all_to_all_single", "batch_isend_irecv")
    real = {name: getattr(dist, name) for name in names}

    def gather(parts: list[Tensor], tensor: Tensor, **kwargs: Any) -> Any:
        nonlocal wire
        wire += tensor.nbytes * (len(parts) - 1)
        return real["all_gather"](parts, tensor, **kwargs)

    def scatter(output: Tensor, tensor: Tensor, *splits: list[int], **kwargs: Any) -> Any:
        nonlocal wire
        assert splits[1][dist.get_rank()] == 0
        wire += tensor.nbytes
        return real["all_to_all_single"](output, tensor, *splits, **kwargs)

    def send(messages: list[dist.P2POp]) -> Any:
        nonlocal wire
        wire += sum(message.tensor.nbytes for message in messages if message.op is dist.isend)
        return real["batch_isend_irecv"](messages)

    model = sharded_chain(**options)
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(3):
        before = model.meter.sent_bytes
        wire = 0
        with pytest.MonkeyPatch.context() as patch:
            if step:  # the first forward agrees on the order
                patch.setattr(dist, "all_gather", gather)
                patch.setattr(dist, "all_to_all_single", scatter)
                patch.setattr(dist, "batch_isend_irecv", send)
            optimizer.zero_grad()
            model(inputs(step)).sum().backward()
            optimizer.step()
        sent = model.meter.sent_bytes - before
        assert not step or wire == sent
        found.append((sent, model.meter.parameters.peak, model.meter.gradients.peak, 0))
    states = sum(
        value.nbytes
        for state in optimizer.state.values()
        for value in state.values()
        if value.dim()
    )
    own = sum(p.nbytes for p in model.parameters())
    held = sum(p.grad.nbytes for p in model.parameters() if p.grad is not None)
    assert (held, states) == (own, 2 * own)
    found.append((model.shard_bytes(), 0, 0, own))
    return found


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("options", [{}, {"sharding_strategy": KEPT}], ids=["full", "kept"])
def test_bytes_and_memory_are_the_formula(
    ranks: RankPool, world_size: int, options: dict[str, Any]
) -> None:
    unit = 4 * padded(Chain(), world_size)
    rounds = 2 if options else 3
    results = ranks.run(world_size, count, options)
    for *steps, (shards, _, _, _) in results:
        for sent, parameters_peak, gradients_peak, _ in steps:
            assert sent == rounds * 3 * unit * (world_size - 1) // world_size
            # The unit that computes and the next one; or all, where they are kept.
            assert parameters_peak == (3 if options else 2) * unit
            # Collected for the unit that computes; for the one before under way, with what comes in
            # before anything has left.
            coming = unit // world_size * min(world_size - 1, WINDOW)
            assert gradients_peak <= 2 * unit + coming
        assert shards == 3 * unit // world_size
    # Together they have each element once.
    assert sum(result[-1][3] for result in results) == 4 * 3 * 110


# The order of collectives.


def differing_orders() -> None:
    """Ranks leave out different layers, also in the very first forward, or swap them."""
    rank = dist.get_rank()
    orders: list[tuple[int, ...]] = [
        (0, 2) if rank == 0 else (0, 1, 2),
        (0, 1) if rank == 0 else (1, 2),
        (2, 1, 0) if rank == 0 else (0, 1, 2),
        (1,),
        (0, 1, 2) if rank == 0 else (0,),
        (2, 0),
    ]
    for first in range(len(orders)):
        model = sharded_chain()
        for step, order in enumerate(orders[first:] + orders[:first]):
            model.zero_grad()
            data = inputs(step).requires_grad_()
            bare = Chain()
            expected = mean_of_ranks(bare, bare(data, order).square().sum())
            model(data, order).square().sum().backward()
            found = gradients(model)
            if dist.get_world_size() == 2:
                equal(found, expected)
            for name, value in expected.items():
                # What came late, because this rank swapped layers, is added at the end.
                torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6)
            with torch.no_grad():
                model(data, order)


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_may_use_different_units(ranks: RankPool, world_size: int) -> None:
    """And wait for nobody; what a rank did not use counts as zeros."""
    ranks.run(world_size, differing_orders)


def repeated() -> list[int]:
    """A unit used twice in a forward is gathered twice in the first only."""
    model = sharded_chain()
    sent = []
    for _ in range(3):
        before = model.meter.sent_bytes
        model.zero_grad()
        bare = Chain()
        expected = mean_of_ranks(bare, bare(inputs(), (0, 1, 0, 2)).sum())
        model(inputs(), (0, 1, 0, 2)).sum().backward()
        equal(gradients(model), expected)
        sent.append(model.meter.sent_bytes - before)
    with pytest.raises(RuntimeError, match=r"layers\.1 \(Linear\) is used again after it was fre"):
        model(inputs(), (0, 1, 1, 2))
    model.zero_grad()
    model(inputs(), (0, 1, 0, 2)).sum().backward()
    equal(gradients(model), expected)
    return sent


def test_a_unit_may_be_used_twice(ranks: RankPool) -> None:
    unit = 4 * padded(Chain(), 2)
    for sent in ranks.run(2, repeated):
        assert sent == [10 * unit // 2, 9 * unit // 2, 9 * unit // 2]


def several_forwards() -> None:
    model = sharded_chain()
    for _ in range(2):
        model.zero_grad()
        bare = Chain()
        expected = mean_of_ranks(bare, (bare(inputs(1)) * bare(inputs(2))).square().sum())
        (model(inputs(1)) * model(inputs(2))).square().sum().backward()
        equal(gradients(model), expected)
        assert model.meter.parameters.now == 0
    # Two backwards through one forward.
    model.zero_grad()
    output = model(inputs())
    output.sum().backward(retain_graph=True)
    output.square().sum().backward()
    bare, again = Chain(), Chain()
    expected = mean_of_ranks(bare, bare(inputs()).sum())
    other = mean_of_ranks(again, again(inputs()).square().sum())
    for name, gradient in gradients(model).items():
        assert torch.equal(gradient, expected[name] + other[name])
    # A forward whose backward never comes; one unit by itself; autograd.grad.
    model.zero_grad()
    model(inputs())
    model.layers[1](inputs()).sum()
    data = inputs().requires_grad_()
    torch.autograd.grad(model(data).sum(), data)
    assert not any(gradient.any() for gradient in gradients(model).values())
    bare = Chain()
    expected = mean_of_ranks(bare, bare(inputs()).sum())
    model(inputs()).sum().backward()
    equal(gradients(model), expected)


def test_forwards_and_backwards_need_not_alternate(ranks: RankPool) -> None:
    ranks.run(2, several_forwards)


class BadError(Exception):
    pass


class Fails(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.now = False

    def forward(self, inputs: Tensor) -> Tensor:
        if self.now:
            raise BadError
        return inputs


def forgotten() -> None:
    model = sharded_chain()
    with model.no_sync():
        model(inputs(1)).sum().backward()
    model.zero_grad()
    loss = model(inputs()).square().sum()
    loss.backward()
    plain = Chain()
    equal(gradients(model), mean_of_ranks(plain, plain(inputs()).square().sum()))


def test_zero_grad_forgets_what_no_sync_has_collected(ranks: RankPool) -> None:
    ranks.run(2, forgotten)


def given_up() -> bool:
    model = sharded_chain()
    for step in range(2):
        model(inputs(step)).square().sum().backward()
    layer = weakref.ref(model.layers[0])
    del model
    gc.collect()
    return layer() is None


def test_a_model_is_freed(ranks: RankPool) -> None:
    assert ranks.run(2, given_up) == [True, True]


def exceptions() -> None:
    """In forward and in backward; caught by the script, the model is as before."""
    for learned in (False, True):
        bare = Chain()
        fails = Fails()
        bare.layers.insert(2, nn.Sequential(fails, nn.Linear(10, 10)))
        torch.manual_seed(1)
        nn.init.normal_(bare.layers[2][1].weight)  # type: ignore[index]  # a Sequential
        nn.init.normal_(bare.layers[2][1].bias)  # type: ignore[index]  # a Sequential
        order = (0, 1, 2, 3)
        alone = copy.deepcopy(bare)
        expected = mean_of_ranks(alone, alone(inputs(), order).sum())
        policy = ModuleWrapPolicy({nn.Linear, nn.Sequential})
        model = FSDP(bare, auto_wrap_policy=policy)
        if learned:
            model(inputs(), order).sum().backward()
            model.zero_grad()
        fails.now = True
        with pytest.raises(BadError):
            model(inputs(), order)
        fails.now = False
        assert model.meter.parameters.now == 0
        output = model(inputs(), order)

        def bad(_: Tensor) -> None:
            raise BadError

        (output * inputs().requires_grad_()).register_hook(bad)
        scaled = output * 2
        scaled.register_hook(bad)
        with pytest.raises(BadError):
            scaled.sum().backward()
        model(inputs(), order).sum().backward()
        equal(gradients(model), expected)
        assert model.meter.parameters.now == 0
        assert model.meter.gradients.now == 0


def test_exceptions_leave_a_usable_model(ranks: RankPool) -> None:
    ranks.run(2, exceptions)


# Outputs, inputs, parts.


class Outputs(nn.Module):
    """Nested outputs, keyword inputs, a parameter that is never used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(10, 10)
        self.unused = nn.Parameter(torch.ones(3))

    def forward(self, inputs: Tensor, *, scale: float) -> Any:
        hidden = self.linear(inputs) * scale
        return {"a": [hidden, hidden * 2], "b": (hidden.detach(), None)}


def outputs() -> None:
    model = FSDP(nn.ModuleList([FSDP(Outputs()), FSDP(Outputs())]))
    bare = nn.ModuleList([Outputs(), Outputs()])

    def loss(module: Any) -> Tensor:
        first = module[0](inputs(), scale=2.0)
        result: Tensor = module[1](first["a"][1], scale=0.5)["a"][0].sum()
        return result

    for _ in range(2):
        model.zero_grad()
        alone = copy.deepcopy(bare)
        expected = mean_of_ranks(alone, loss(alone))
        loss(model).backward()
        equal(gradients(model), expected)


def test_outputs_may_be_nested_and_parameters_unused(ranks: RankPool) -> None:
    ranks.run(2, outputs)


class Recurrent(nn.Module):
    """nn.LSTM keeps a list of its weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(10, 5)
        self.head = nn.Linear(5, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.head(self.lstm(inputs)[0])
        return result


def recurrent() -> None:
    bare = Recurrent()
    expected = mean_of_ranks(bare, bare(inputs()).sum())
    model = FSDP(Recurrent(), auto_wrap_policy=ModuleWrapPolicy({nn.LSTM}))
    for _ in range(2):
        model.zero_grad()
        model(inputs()).sum().backward()
        equal(gradients(model), expected)


def test_modules_that_keep_lists_of_weights(ranks: RankPool) -> None:
    ranks.run(2, recurrent)


def frozen_late() -> None:
    """Freezing after wrapping, as before."""
    model, bare = sharded_chain(), Chain()
    for module in (model, bare):
        for name, parameter in module.named_parameters():
            if name in ("layers.0.weight", "layers.1.weight", "layers.1.bias"):
                parameter.requires_grad_(False)
    expected = mean_of_ranks(bare, bare(inputs()).sum())
    model(inputs()).sum().backward()
    trained = {name for name, p in bare.named_parameters() if p.requires_grad}
    equal(
        {name: gradient for name, gradient in gradients(model).items() if name in trained},
        {name: gradient for name, gradient in expected.items() if name in trained},
    )


def test_parameters_may_be_frozen_afterwards(ranks: RankPool) -> None:
    ranks.run(2, frozen_late)


def unfrozen_late() -> None:
    model = FSDP(nn.Sequential(nn.Linear(10, 10).requires_grad_(False), nn.Linear(10, 10)))
    model(inputs()).sum().backward()
    model.requires_grad_(True)
    with pytest.raises(RuntimeError, match=r"0\.weight of Sequential was unfrozen after"):
        model(inputs())
    next(model.module.children()).requires_grad_(False)
    model(inputs()).sum().backward()


def test_parameters_unfrozen_too_late_are_named(ranks: RankPool) -> None:
    ranks.run(2, unfrozen_late)


def tiny() -> None:
    """More ranks than elements; all elements on one rank; the empty parts train."""
    bare = nn.Linear(1, 1)
    model = FSDP(copy.deepcopy(bare), sync_module_states=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(inputs(0, 1)).sum().backward()
    model.clip_grad_norm_(0.5)
    optimizer.step()
    changed = model.state_dict()["weight"]
    everybodys = [torch.empty_like(changed) for _ in range(dist.get_world_size())]
    dist.all_gather(everybodys, changed)
    assert all(torch.equal(one, changed) for one in everybodys)


@pytest.mark.parametrize("world_size", [1, 4])
def test_there_may_be_more_ranks_than_elements(ranks: RankPool, world_size: int) -> None:
    ranks.run(world_size, tiny)


def zero_padding() -> None:
    torch.manual_seed(dist.get_rank())
    model = FSDP(nn.Sequential(nn.Linear(3, 3), FSDP(nn.Linear(3, 3))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, eps=0.0)
    for step in range(3):
        optimizer.zero_grad()
        model(inputs(step, 3)).sum().backward()
        optimizer.step()
        for m in FSDP.fsdp_modules(model):
            for flat in m._unit.flats:
                whole, whole_gradients = (
                    flat.whole(flat.shard),
                    flat.whole(flat.shard_of_gradients()),
                )
                assert sum(gap.stop - gap.start for gap in flat.gaps) >= 7
                for gap in flat.gaps:
                    assert not whole[gap].any()
                    assert not whole_gradients[gap].any()


def test_padding_stays_zero(ranks: RankPool) -> None:
    ranks.run(3, zero_padding)
