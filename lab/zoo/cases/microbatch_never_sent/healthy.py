import torch
import torch.distributed as dist
from torch import nn

BATCH, MICROBATCH = 24, 4

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
stage = nn.Linear(32, 32)


def forward(samples):
    """One batch through all stages, a microbatch at a time."""
    results = []
    for microbatch in samples.split(MICROBATCH):
        if rank > 0:
            dist.irecv(microbatch, rank - 1).wait()
        results.append(stage(microbatch).tanh().detach())
        if rank < world - 1:
            dist.isend(results[-1], rank + 1).wait()
    return torch.cat(results)


for step in range(5):
    samples = torch.randn(BATCH, 32)
    size = forward(samples).norm()
    dist.all_reduce(size)
print(f"rank {rank}: {size.item():.3f}")
dist.destroy_process_group()
