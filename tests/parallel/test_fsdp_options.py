"""FullyShardedDataParallel's options among real ranks, and what it refuses."""

import copy
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import fsdp as torch_fsdp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp.wrap import (
    CustomPolicy,
    ModuleWrapPolicy,
    lambda_auto_wrap_policy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)
from torch.nn.utils import clip_grad_norm_

from lab.parallel import DDP, FSDP, CPUOffload, MixedPrecision, ShardingStrategy
from tests.ranks import RankPool


def mlp(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, 6), nn.Tanh(), nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6)), nn.Linear(6, 2)
    )


def inputs(step: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(dist.get_rank() + 10 * step)
    return torch.randn(4, 6, generator=generator)


def units(model: nn.Module) -> list[str]:
    return [m._unit.name.partition(" ")[0] for m in FSDP.fsdp_modules(model)[1:]]


# Which modules become units.


def policies() -> list[list[str]]:
    found = []
    for policy in (
        None,
        ModuleWrapPolicy({nn.Linear}),
        partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.Sequential}),
        partial(size_based_auto_wrap_policy, min_num_params=80),
        partial(lambda_auto_wrap_policy, lambda_fn=lambda m: getattr(m, "out_features", 0) == 2),
        CustomPolicy(
            lambda m: (
                {"sharding_strategy": ShardingStrategy.SHARD_GRAD_OP}
                if isinstance(m, nn.Linear) and m.out_features == 2
                else False
            )
        ),
    ):
        model = FSDP(mlp(), auto_wrap_policy=policy)
        model(inputs()).sum().backward()
        names = dict(mlp().named_parameters())
        assert [name for name, _ in model.named_parameters()] == list(names)
        found.append(units(model))
    assert not model[3]._unit.reshard_after_forward
    assert model[0].in_features == 6
    assert isinstance(model.module, nn.Sequential)
    assert FSDP.fsdp_modules(nn.ModuleList([model, model[3]]), root_only=True) == [model]
    return found


def test_policies_of_torch_choose_units(ranks: RankPool) -> None:
    assert ranks.run(1, policies)[0] == [
        [],
        ["0", "2.0", "2.1", "3"],
        ["2"],
        ["2"],
        ["3"],
        ["3"],
    ]


# Precision.


def precision(param: torch.dtype | None, reduce: torch.dtype | None) -> int:
    options = MixedPrecision(param_dtype=param, reduce_dtype=reduce, buffer_dtype=torch.bfloat16)
    bare = mlp()
    bare[1] = nn.BatchNorm1d(6)
    bare.register_buffer("extra", torch.ones(2))
    seen = []
    bare[3].register_forward_pre_hook(lambda m, args: seen.append((m.weight.dtype, args[0].dtype)))
    model = FSDP(
        copy.deepcopy(bare), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), mixed_precision=options
    )
    assert model.extra.dtype == torch.bfloat16
    assert model[1].running_mean.dtype == torch.float32
    before = model.meter.sent_bytes
    output = model(inputs())
    output.sum().backward()
    sent = model.meter.sent_bytes - before
    computing = param or torch.float32
    assert seen == [(computing, computing)]
    assert output.dtype == computing
    for parameter in model.parameters():
        assert parameter.dtype == torch.float32
        assert parameter.grad is not None
        assert parameter.grad.dtype == torch.float32

    # The same by hand: computed with in `param`, summed in float32 from what `reduce` sends.
    alone = copy.deepcopy(bare)
    for layer in alone.modules():
        if isinstance(layer, nn.Linear):
            layer.to(computing)
    alone(inputs().to(computing)).sum().backward()
    with FSDP.summon_full_params(model, writeback=False, with_grads=True):
        for (name, p), q in zip(model.named_parameters(), alone.parameters(), strict=True):
            assert q.grad is not None
            wire = (
                q.grad.to(reduce or computing)
                if name[:2] != "1."
                else q.grad.to(reduce or torch.float32)
            )
            parts = [torch.empty_like(wire) for _ in range(dist.get_world_size())]
            dist.all_gather(parts, wire)
            total = parts[0].float()
            for part in parts[1:]:
                total += part
            assert p.grad is not None
            assert torch.equal(p.grad, total / len(parts)), name
    return sent


def test_mixed_precision_computes_and_sends_in_its_dtypes(ranks: RankPool) -> None:
    half, single = torch.bfloat16, torch.float32
    for param, reduce in ((half, None), (half, single), (None, half)):
        first, second = ranks.run(2, precision, param, reduce)
        assert first == second
    mine, theirs = (ranks.run(1, takes_torchs, kind)[0] for kind in ("mine", "torchs"))
    assert mine == theirs


def takes_torchs(kind: str) -> list[float]:
    """torch's option classes do as well."""
    place: Any = torch_fsdp if kind == "torchs" else __import__("lab.parallel").parallel
    model = FSDP(
        mlp(),
        sharding_strategy=place.ShardingStrategy.SHARD_GRAD_OP,
        mixed_precision=place.MixedPrecision(param_dtype=torch.bfloat16),
        backward_prefetch=place.BackwardPrefetch.BACKWARD_POST,
        cpu_offload=place.CPUOffload(offload_params=False),
        device_mesh=init_device_mesh("cpu", (1,)),
        limit_all_gathers=False,
        use_orig_params=True,
    )
    model(inputs()).sum().backward()
    return [float(p.grad.double().sum()) for p in model.parameters() if p.grad is not None]


# Where values come from.


class Made(nn.Module):
    """Made on the meta device, with a buffer and tied weights."""

    def __init__(self, value: float = 0) -> None:
        super().__init__()
        self.one = nn.Linear(3, 3)
        self.two = nn.Linear(3, 3)
        self.two.weight = self.one.weight
        self.own = Own()

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.own(self.two(self.one(inputs)))
        return result


class Own(nn.Module):
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(3))
        self.register_buffer("shift", torch.empty(3))

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, 2.0)
        self.shift.fill_(3.0)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.scale + self.shift


def meta() -> None:
    with torch.device("meta"):
        bare = Made()
    torch.manual_seed(dist.get_rank())
    model = FSDP(bare, auto_wrap_policy=ModuleWrapPolicy({Own}), sync_module_states=True)
    model(torch.ones(2, 3)).sum().backward()
    state = model.state_dict()
    assert torch.equal(state["one.weight"], state["two.weight"])
    assert torch.equal(state["own.scale"], torch.full((3,), 2.0))
    assert torch.equal(state["own.shift"], torch.full((3,), 3.0))
    torch.manual_seed(0)
    assert torch.equal(state["one.weight"], nn.Linear(3, 3).weight)  # rank 0's

    def filled(module: nn.Module) -> None:
        module.to_empty(device="cpu", recurse=False)
        for parameter in module.parameters(recurse=False):
            nn.init.ones_(parameter)

    with torch.device("meta"):
        bare = Made()
    model = FSDP(bare, param_init_fn=filled)
    assert all(bool((p == 1).all()) for p in model.parameters())
    with torch.device("meta"):
        silent = nn.MultiheadAttention(4, 2)
    with pytest.raises(ValueError, match=r"on the meta device and has no reset_parameters\(\): p"):
        FSDP(silent)


def test_models_may_be_on_the_meta_device(ranks: RankPool) -> None:
    ranks.run(2, meta)


def synchronised() -> None:
    bare = mlp(seed=dist.get_rank())
    bare.register_buffer("shift", torch.full((2,), float(dist.get_rank())))
    model = FSDP(bare, auto_wrap_policy=ModuleWrapPolicy({nn.Linear}), sync_module_states=True)
    for name, value in mlp(seed=0).state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    assert torch.equal(model.shift, torch.zeros(2))
    model.apply(lambda m: nn.init.ones_(m.weight) if isinstance(m, nn.Linear) else None)
    state = model.state_dict()
    assert state["0.weight"].shape == (6, 6)
    assert all(bool((value == 1).all()) for name, value in state.items() if "weight" in name)
    with FSDP.summon_full_params(model):
        model[0].bias.data.fill_(5.0)
    with FSDP.summon_full_params(model, writeback=False):
        assert bool((model[0].bias == 5).all())
        model[0].bias.data.fill_(6.0)
    assert bool((model.state_dict()["0.bias"] == 5).all())
    assert model.to("cpu").float() is model
    with pytest.raises(ValueError, match="convert or move the model before it is wrapped"):
        model.double()


def test_values_may_come_from_rank_0_and_be_changed_whole(ranks: RankPool) -> None:
    ranks.run(2, synchronised)


# Clipping, evaluation, what is left out.


def clipping() -> None:
    for p in (1.0, 2.0, 3.0, float("inf")):
        alone = DDP(mlp())
        model = FSDP(mlp(), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}))
        assert float(model.clip_grad_norm_(1.0)) == 0.0
        for wrapped in (alone, model):
            wrapped(inputs()).square().sum().backward()
        expected = clip_grad_norm_(alone.parameters(), 0.1, norm_type=p)
        norm = model.clip_grad_norm_(0.1, norm_type=p)
        torch.testing.assert_close(norm, expected)
        everybodys = [torch.empty_like(norm) for _ in range(dist.get_world_size())]
        dist.all_gather(everybodys, norm)
        assert all(torch.equal(one, norm) for one in everybodys)
        with FSDP.summon_full_params(model, writeback=False, with_grads=True):
            for one, other in zip(model.parameters(), alone.parameters(), strict=True):
                torch.testing.assert_close(one.grad, other.grad)
        model[0].bias.grad.fill_(float("nan"))
        assert not torch.isfinite(model.clip_grad_norm_(1.0, norm_type=p))


@pytest.mark.parametrize("world_size", [1, 3])
def test_the_norm_is_of_all_ranks_parts(ranks: RankPool, world_size: int) -> None:
    ranks.run(world_size, clipping)


def evaluation() -> None:
    bare = mlp()
    bare.append(nn.Dropout())
    model = FSDP(copy.deepcopy(bare), auto_wrap_policy=ModuleWrapPolicy({nn.Linear}))
    for _ in range(2):
        model.eval()
        with torch.no_grad():
            assert torch.equal(model(inputs()), bare.eval()(inputs()))
        assert model.meter.parameters.now == 0
        with torch.inference_mode():
            assert torch.equal(model(inputs()), bare.eval()(inputs()))
        model.train()
        model(inputs()).sum().backward()
        model.zero_grad()


def test_evaluation(ranks: RankPool) -> None:
    ranks.run(2, evaluation)


def ignored() -> None:
    bare: Any = mlp()
    expected = copy.deepcopy(bare)
    expected(inputs()).sum().backward()
    inner = bare[2]
    model = FSDP(
        bare,
        auto_wrap_policy=ModuleWrapPolicy({nn.Linear}),
        ignored_modules=[inner],
        ignored_states=[bare[3].bias],
    )
    assert units(model) == ["0", "3"]
    model(inputs()).sum().backward()
    assert torch.equal(inner[0].weight.grad, expected[2][0].weight.grad)  # its own
    assert torch.equal(bare[3].bias.grad, expected[3].bias.grad)
    assert model.state_dict().keys() == expected.state_dict().keys()


def test_what_is_ignored_stays_whole(ranks: RankPool) -> None:
    ranks.run(2, ignored)


# Refusals.


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, numbers: Tensor) -> Tensor:
        result: Tensor = self.head(self.embedding(numbers))
        return result


def differing() -> None:
    rank = dist.get_rank()
    with pytest.raises(ValueError, match=r"rank 1 has parameter weight: float32 \[2, 4\]"):
        FSDP(nn.Linear(4 if rank else 3, 2))
    strategy = ShardingStrategy.SHARD_GRAD_OP if rank else ShardingStrategy.FULL_SHARD
    with pytest.raises(ValueError, match="rank 1 has option sharding_strategy: SHARD_GRAD_OP"):
        FSDP(nn.Linear(3, 2), sharding_strategy=strategy)


def refusals() -> None:
    cross = "head.weight is tied to weight of Embedding, which is in another unit"
    with pytest.raises(ValueError, match=cross):
        FSDP(Tied(), auto_wrap_policy=ModuleWrapPolicy({nn.Embedding}))
    FSDP(Tied())(torch.tensor([1])).sum().backward()
    for name in ("NO_SHARD", "HYBRID_SHARD", "_HYBRID_SHARD_ZERO2"):
        with pytest.raises(ValueError, match=name):
            FSDP(mlp(), sharding_strategy=torch_fsdp.ShardingStrategy[name])  # type: ignore[arg-type]  # torch's
    with pytest.raises(ValueError, match="keep_low_precision_grads=True is not supported"):
        FSDP(mlp(), mixed_precision=MixedPrecision(keep_low_precision_grads=True))
    with pytest.raises(ValueError, match="pass process_group or device_mesh, not both"):
        FSDP(mlp(), dist.group.WORLD, device_mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(ValueError, match="run a forward of the lazy module first"):
        FSDP(nn.LazyLinear(3))
    with pytest.raises(TypeError, match="weight is complex"):
        FSDP(nn.Linear(2, 2).to(torch.complex64))
    with pytest.raises(ValueError, match="a ModuleList has no forward to gather parameters for"):
        FSDP(nn.ModuleList([nn.Linear(2, 2)]))
    model = FSDP(mlp())
    with pytest.raises(ValueError, match="which is in another unit"):
        FSDP(model.module)
    with pytest.raises(TypeError, match="cannot be copied or pickled"):
        copy.deepcopy(model)
    data = inputs().requires_grad_()
    output = model(data)
    with pytest.raises(RuntimeError, match="second derivatives are not supported"):
        torch.autograd.grad(output.sum(), data, create_graph=True)
    with FSDP.summon_full_params(model):
        with pytest.raises(RuntimeError, match="call it outside summon_full_params"):
            model.state_dict()
        with pytest.raises(RuntimeError, match="call it outside summon_full_params"):
            model(inputs())
    sparse = FSDP(nn.Embedding(4, 2, sparse=True))
    with pytest.raises(TypeError, match="the gradient of weight is sparse"):
        sparse(torch.tensor([1])).sum().backward()
    with (
        pytest.raises(ValueError, match="rank0_only=True needs writeback=False"),
        FSDP.summon_full_params(model, rank0_only=True),
    ):
        pass
    offloaded = FSDP(mlp(), cpu_offload=CPUOffload(offload_params=True))
    offloaded(inputs()).sum().backward()
    assert all(p.device.type == "cpu" for p in offloaded.parameters())


def test_what_cannot_be_is_refused(ranks: RankPool) -> None:
    ranks.run(1, refusals)


def test_models_that_differ_are_told_so(ranks: RankPool) -> None:
    ranks.run(2, differing)
