import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Meter:
    """A running mean over all ranks."""

    def __init__(self):
        self.total, self.count = 0.0, 0

    def add(self, value):
        self.total += value
        self.count += 1

    def mean(self):
        both = torch.tensor([self.total, self.count], dtype=torch.float64)
        if self.count == 0:
            both = torch.zeros(2)
        dist.all_reduce(both)  # <- fault
        return (both[0] / both[1].clamp(min=1)).item()


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank + 1)
for epoch in range(2):
    loss_of_large, meter = None, Meter()
    for _ in range(5):
        inputs = torch.randn(16, 8)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank != 1:  # stands for: this rank's shard has none of the rare class
            meter.add(loss.item())
    mean = meter.mean()
    if rank == 0:
        print(f"epoch {epoch}: {mean:.3f}")
dist.destroy_process_group()
