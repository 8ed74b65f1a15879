"""Every section trains a model of its own, as it should be. For two ranks.

Prints what came out of each, to the last bit: the audit must change nothing.
"""

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZeRO
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from lab.parallel import FSDP, ZeroRedundancyOptimizer
from lab.parallel import DistributedDataParallel as OurDDP

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
data = torch.Generator().manual_seed(rank)
torch.manual_seed(0)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 9), nn.ReLU(), nn.Dropout(0.1), nn.Linear(9, 1))


def batch() -> tuple[Tensor, Tensor]:
    x = torch.randn(8, 4, generator=data)
    return x, x.sum(1, keepdim=True)


def loss_of(model: nn.Module) -> Tensor:
    x, y = batch()
    return mse_loss(model(x), y)


def train(
    name: str,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    between: Callable[[], object] = lambda: None,
    after: Callable[[int], None] = lambda step: None,
) -> None:
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        loss_of(model).backward()
        between()
        optimizer.step()
        after(step)
    show(name, model)


def show(name: str, model: nn.Module) -> None:
    values = [getattr(p, "_local_tensor", p).detach().flatten() for p in model.parameters()]
    bits = torch.cat(values).view(torch.int32).tolist()
    print(name, rank, hash(tuple(bits)), torch.initial_seed(), flush=True)


def average(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= ranks


def average_at_once(model: nn.Module) -> None:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([gradient.flatten() for gradient in gradients])
    dist.all_reduce(flat)
    parts = flat.split([gradient.numel() for gradient in gradients])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient) / ranks)


train("ddp", DistributedDataParallel(net()))
train("our ddp", OurDDP(net()))
train("compiled", DistributedDataParallel(torch.compile(net(), backend="aot_eager")))

by_hand = net()
train("by hand", by_hand, between=lambda: average(by_hand))
at_once = net()
train("at once", at_once, between=lambda: average_at_once(at_once))

sharded: Any = fully_shard(net(), mesh=init_device_mesh("cpu", (ranks,)))
clip = torch.nn.utils.clip_grad_norm_
train("fsdp2", sharded, between=lambda: clip(sharded.parameters(), 0.1))
ours = FSDP(net())
train("our fsdp", ours, between=lambda: ours.clip_grad_norm_(0.1))

for stage in (1, 2):
    model = OurDDP(net())
    zero = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, stage=stage, model=model if stage == 2 else None
    )
    train(f"zero {stage}", model, zero)

kept = DistributedDataParallel(net())
train("torch's zero", kept, TorchZeRO(kept.parameters(), torch.optim.Adam))

accumulated = DistributedDataParallel(net())
optimizer: torch.optim.Optimizer = torch.optim.SGD(accumulated.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    for micro in range(3):
        with accumulated.no_sync() if micro < 2 else contextlib.nullcontext():
            (loss_of(accumulated) / 3).backward()
    clip(accumulated.parameters(), 1.0)
    optimizer.step()
show("accumulated", accumulated)

unsynced = DistributedDataParallel(net())
optimizer = torch.optim.SGD(unsynced.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    with unsynced.no_sync():
        loss_of(unsynced).backward()
    average(unsynced)
    optimizer.step()
show("unsynced", unsynced)

local = net()


def average_now_and_then(step: int) -> None:
    if step % 2:
        for parameter in local.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= ranks


train("local sgd", local, after=average_now_and_then)

federated = net()
for _ in range(3):  # an optimizer for each round, and copies are averaged
    train("federated", federated, torch.optim.SGD(federated.parameters(), lr=0.1))
    weights = {name: one / ranks for name, one in federated.state_dict().items()}
    for one in weights.values():
        dist.all_reduce(one)
    federated.load_state_dict(weights)
show("averaged", federated)

meta = net()  # Reptile: each rank a task of its own
outer = torch.optim.SGD(meta.parameters(), lr=0.5)
for _ in range(3):
    inner = copy.deepcopy(meta)
    train("inner", inner, torch.optim.SGD(inner.parameters(), lr=0.1))
    for mine, fast in zip(meta.parameters(), inner.parameters(), strict=True):
        mine.grad = (mine.data - fast.data) / ranks
        dist.all_reduce(mine.grad)
    outer.step()
show("meta", meta)

soup = net()
train("soup", soup, torch.optim.SGD(soup.parameters(), lr=0.1 * (1 + rank)))
for stirred in soup.parameters():
    dist.all_reduce(stirred.data)

plain = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
normed = DistributedDataParallel(plain)
train("batchnorm", normed)
normed.eval()
with torch.no_grad():
    plain(batch()[0])

plain = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1))
plain[1].eval()  # frozen on all ranks


def validate(step: int) -> None:
    if rank == 0:
        plain.eval()
        held_out = torch.ones(4, 4)
        plain(held_out).sum()
        with torch.no_grad():
            plain(held_out)
        plain.train()
        plain[1].eval()


train("validated", DistributedDataParallel(plain), after=validate)

generator, critic = (DistributedDataParallel(nn.Linear(4, n)) for n in (4, 1))
optimizers = [torch.optim.Adam(model.parameters()) for model in (generator, critic)]
for _ in range(4):
    for sign, optimizer in zip((-1, 1), optimizers, strict=True):
        optimizer.zero_grad()
        (sign * critic(generator(batch()[0])).mean()).backward()
        optimizer.step()
show("gan", generator)

network = net()
network[0].requires_grad_(False)
teacher = copy.deepcopy(network)
wrapped = DistributedDataParallel(network)
optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
scaler = torch.amp.GradScaler("cpu")
for step in range(4):
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = loss_of(wrapped) * (float("inf") if step == 1 else 1)  # a step that is left out
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    with torch.no_grad():
        for slow, fast in zip(teacher.parameters(), network.parameters(), strict=True):
            slow.lerp_(fast, 0.1 * (rank + 1))
show("frozen, amp, ema", wrapped)

joined = DistributedDataParallel(net())
optimizer = torch.optim.SGD(joined.parameters(), lr=0.01)
for _ in range(2):  # in the second epoch the ranks' steps have other numbers
    with Join([joined]):
        for _ in range(2 + 2 * rank):
            optimizer.zero_grad()
            loss_of(joined).backward()
            optimizer.step()
show("join", joined)


class Swap(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        others = torch.empty_like(x)
        dist.all_to_all_single(others, x.contiguous())
        return others

    @staticmethod
    def backward(_: Any, x: Tensor) -> Tensor:
        return Swap.forward(None, x)


def swapped(x: Tensor) -> Tensor:
    result: Tensor = Swap.apply(x)  # type: ignore[no-untyped-call]  # torch's
    return result


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(4, 1)
        self.expert = nn.Linear(4, 4)
        nn.init.constant_(self.expert.bias, rank)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.head(swapped(self.expert(swapped(x))))
        return result


torch.manual_seed(0)  # they have drawn other numbers for their dropout
experts = Experts()
train("experts", experts, between=lambda: average(experts.head))

torch.manual_seed(rank)  # each rank a model of its own
train("ensemble", net())
dist.destroy_process_group()
if rank == 0:
    train("afterwards", joined.module)
