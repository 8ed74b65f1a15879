"""Every section trains a model of its own, with one fault. For three ranks."""

from collections.abc import Callable, Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
data = torch.Generator().manual_seed(rank)


class Net(nn.Module):
    def __init__(self, unused: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 8), nn.Linear(8, 1)
        if unused:
            self.never = nn.Linear(3, 3)  # line: never

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.b(self.a(x).relu())
        return y


def loss_of(model: nn.Module) -> Tensor:
    x = torch.randn(8, 4, generator=data)
    loss: Tensor = (model(x) - x.sum(1, keepdim=True)).square().mean()
    return loss


def average(parameters: Iterable[Tensor]) -> None:
    for parameter in parameters:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        parameter.grad /= ranks


def train(model: nn.Module, lr: float = 0.1, between: Callable[[], None] = lambda: None) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for _ in range(4):
        optimizer.zero_grad()
        loss_of(model).backward()
        between()
        optimizer.step()  # line: step


torch.manual_seed(rank)
other = Net()  # line: other
train(other, between=lambda: average(other.parameters()))

torch.manual_seed(0)
alone = Net()
train(alone)

partly = Net()
optimizer = torch.optim.SGD(partly.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    loss_of(partly).backward()
    average(list(partly.parameters())[:-1])
    optimizer.step()  # line: partly

model = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    with model.no_sync():  # line: no_sync
        loss_of(model).backward()
    optimizer.step()

twice = DistributedDataParallel(Net())


def again() -> None:
    for parameter in twice.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)  # line: again


train(twice, between=again)
train(DistributedDataParallel(Net(unused=True), find_unused_parameters=True))
train(DistributedDataParallel(Net()), lr=0.2 if rank == 1 else 0.1)

forgetful = DistributedDataParallel(nn.Sequential(Net(), nn.Dropout(0.5)))
if rank == 2:
    forgetful.eval()  # line: forgotten
train(forgetful)
torch.manual_seed(0)  # it has drawn nothing on rank 2

norm = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
train(norm, between=lambda: average(norm.parameters()))
norm.eval()  # line: eval
norm(torch.ones(2, 4))

poisoned = DistributedDataParallel(Net())
optimizer = torch.optim.SGD(poisoned.parameters(), lr=0.1)
for step in range(1, 5):
    optimizer.zero_grad()
    loss = loss_of(poisoned)
    if step == 2 and rank == 2:
        loss = loss * float("nan")
    loss.backward()  # line: nan
    optimizer.step()
dist.destroy_process_group()
