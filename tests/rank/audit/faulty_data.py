"""Every section has one fault of data or communication. For two ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
rows = torch.randn(64, 8)
dataset = TensorDataset(rows, rows.sum(1, keepdim=True))
model = DistributedDataParallel(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


torch.manual_seed(rank)
for batch in DataLoader(dataset, batch_size=8, shuffle=True, num_workers=1):  # line: overlap
    step(*batch)

sampler: DistributedSampler[object] = DistributedSampler(dataset)
for _ in range(2):
    for batch in DataLoader(dataset, batch_size=8, sampler=sampler):  # line: order
        step(*batch)

quarter: DistributedSampler[object] = DistributedSampler(dataset, num_replicas=4, rank=rank)
for batch in DataLoader(dataset, batch_size=4, sampler=quarter):  # line: missing
    step(*batch)

random_split(dataset, [48, 16])  # line: split

for number in range(4):
    inputs = torch.randn(8, 8) * (1 + rank)
    loss = step(inputs, inputs.sum(1, keepdim=True))
    if rank == 0:
        print(f"step {number}: {loss:.6f}")  # line: loss

for number in range(4):
    inputs = torch.randn(4 + 12 * rank, 8) * (1 + rank)
    step(inputs, inputs.sum(1, keepdim=True))
    size = inputs.abs().mean()  # not the loss, of which rank 0 has reported its own
    dist.all_reduce(size)  # line: uneven
    if rank == 0:
        print(f"step {number}: {size / ranks:.6f}")

with open("written-by-all.txt", "w") as file:  # noqa: PTH123  # line: file
    file.write("x")

torch.manual_seed(1)
noisy = DistributedDataParallel(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5)))
generator = torch.Generator().manual_seed(rank)
for _ in range(3):
    noisy(torch.randn(8, 8, generator=generator)).sum().backward()  # line: noise
    torch.optim.SGD(noisy.parameters(), lr=0.1).step()

nn.DataParallel(nn.Linear(2, 2))  # line: data parallel

same = torch.Generator().manual_seed(1)
for _ in range(3):
    inputs = torch.randn(8, 8, generator=same)
    step(inputs, inputs.sum(1, keepdim=True))  # the model is called in `step`

dist.all_reduce(torch.ones(4), op=dist.ReduceOp.MAX if rank else dist.ReduceOp.SUM)  # line: reduce
dist.destroy_process_group()
