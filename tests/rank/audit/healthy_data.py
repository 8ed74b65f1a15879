"""Data and communication in many ways, all of them right. For two ranks.

Prints what came out, to the last bit: the audit must change nothing.
"""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    random_split,
)

dist.init_process_group("gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
rows = torch.randn(67, 8)
dataset = TensorDataset(rows, rows.sum(1, keepdim=True))
network = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Linear(8, 1))
model = DistributedDataParallel(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
torch.manual_seed(rank)


class Stream(IterableDataset[Tensor]):
    def __iter__(self) -> Iterator[Tensor]:
        return iter(rows[rank::ranks])


class Named(Dataset[dict[str, Tensor]]):
    def __len__(self) -> int:
        return len(rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"inputs": rows[index], "targets": rows[index].sum(0, keepdim=True)}


def step(inputs: Tensor, targets: Tensor) -> Tensor:
    model.train()
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.detach()


def show(name: str) -> None:
    bits = torch.cat([p.detach().flatten() for p in model.parameters()]).view(torch.int32)
    print(name, rank, hash(tuple(bits.tolist())), torch.initial_seed(), flush=True)


sampler: DistributedSampler[object] = DistributedSampler(
    dataset
)  # fills up: 67 samples on two ranks
shuffled = DataLoader(
    dataset, batch_size=8, sampler=sampler, num_workers=2, persistent_workers=True
)
for epoch in range(3):
    sampler.set_epoch(epoch)
    losses = [step(*batch) for batch in shuffled]
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean, op=dist.ReduceOp.AVG)
    if rank == 0:
        print(f"epoch {epoch}: loss {mean:.6f}")
    with torch.no_grad():  # every rank evaluates on all of it
        model.eval()
        for inputs, _ in DataLoader(dataset, batch_size=16):
            network(inputs)
show("sampler")

in_order: DistributedSampler[object] = DistributedSampler(dataset, shuffle=False, drop_last=True)
for _ in range(2):
    for batch in DataLoader(dataset, batch_size=8, sampler=in_order, drop_last=True):
        step(*batch)
train, _ = random_split(dataset, [60, 7], torch.Generator().manual_seed(0))
for epoch in range(2):
    part: DistributedSampler[object] = DistributedSampler(train)
    part.set_epoch(epoch)
    for number, batch in enumerate(DataLoader(train, batch_size=8, sampler=part)):
        if number == 2:
            break
        step(*batch)
own = Subset(dataset, range(rank, len(dataset) - 1, ranks))
for _ in range(2):
    for batch in DataLoader(own, batch_size=8, shuffle=True):
        step(*batch)
show("parts")

for _ in range(2):
    for inputs in DataLoader(Stream(), batch_size=8):
        step(inputs, inputs.sum(1, keepdim=True))
weighted = WeightedRandomSampler([1.0] * len(dataset), 32)
for batch in DataLoader(dataset, batch_size=8, sampler=weighted):
    step(*batch)
named: DistributedSampler[object] = DistributedSampler(Named())
for batch in DataLoader(Named(), batch_size=8, sampler=named):
    step(**batch)
for _ in range(12):  # where it begins is left to chance
    starts = torch.randint(len(rows) - 8, (4,)).tolist()
    inputs = torch.cat([rows[start : start + 2] + start / 100 for start in starts])
    step(inputs, inputs.sum(1, keepdim=True))
shared_order = torch.Generator().manual_seed(3)
for _ in range(2):
    for indices in torch.randperm(64, generator=shared_order).split(16):
        step(*dataset[indices[rank::ranks]])
show("streams")

for number in range(4):  # counts that differ, averaged as they should be
    count = torch.tensor(4.0 + 12 * rank)
    inputs = torch.randn(int(count), 8)
    total = step(inputs, inputs.sum(1, keepdim=True)) * count
    both = torch.stack([total, count])
    dist.all_reduce(both)
    if rank == 0:
        print(f"step {number}: loss {both[0] / both[1]:.6f}")
for number in range(4):  # everybody's own
    inputs = torch.randn(8, 8)
    print(f"rank {rank} step {number}: {step(inputs, inputs.sum(1, keepdim=True)):.6f}")

actor, critic = nn.Linear(8, 2), nn.Linear(8, 1)
for number in range(4):  # as many episodes on each rank, of different length
    states = torch.randn(6 + 3 * rank + number, 8)
    with torch.no_grad():
        reward = (actor(states).amax(1, keepdim=True) + critic(states)).sum() / 3
    dist.all_reduce(reward, op=dist.ReduceOp.AVG)
    if rank == 0:
        print(f"iteration {number}: reward {reward:.6f}")

if rank == 0:
    torch.save(network.state_dict(), "by-rank-0.pt")
torch.save(network.state_dict(), f"by-rank-{rank}.of-each.pt")
with open("log-of-all.txt", "a") as file:  # noqa: PTH123
    file.write(f"{rank}\n")

message = [{"rows": list(range(rank))}]
dist.broadcast_object_list(message, src=0)
gathered: list[object] = [None] * ranks
dist.all_gather_object(gathered, "x" * rank)
pair = [torch.ones(2) for _ in range(ranks)]
dist.scatter(torch.empty(2), pair if rank == 0 else None, src=0)
dist.gather(torch.ones(2), pair if rank == 0 else None, dst=0)
if rank == 0:
    dist.broadcast(torch.ones(3), src=0)
    dist.send(torch.ones(5), dst=1)
else:
    dist.broadcast(torch.zeros(3), src=0)
    dist.recv(torch.empty(5), src=0)
alone = [dist.new_group([one]) for one in range(ranks)]
dist.all_reduce(torch.ones(1 + rank), group=alone[rank])
show("collectives")
dist.destroy_process_group()
