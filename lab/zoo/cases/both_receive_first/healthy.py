import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
stage = nn.Linear(32, 32)
other = 1 - rank


def exchange(mine):
    """Send the edge of our part of the grid to the neighbour, and get its edge."""
    theirs = torch.empty_like(mine)
    sending = dist.isend(mine, dst=other)
    dist.recv(theirs, src=other)
    sending.wait()
    return theirs


grid = torch.randn(64, 32)
for step in range(5):
    edge = exchange(grid[-1].contiguous())
    grid = stage(grid + edge).tanh().detach()
print(f"rank {rank}: {grid.norm():.3f}")
dist.destroy_process_group()
