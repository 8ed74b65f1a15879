import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

LIMIT = 3600  # seconds that the queue gives us


def out_of_time(began):
    """Whether to save and leave: all ranks must agree."""
    flag = torch.tensor([time.monotonic() - began > LIMIT], dtype=torch.int32)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag)


def main():
    began = time.monotonic()
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Linear(32, 32))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    for _ in range(10):
        inputs = torch.randn(8, 32)
        optimizer.zero_grad()
        (model(inputs) - inputs).square().mean().backward()
        optimizer.step()
        if out_of_time(began):
            break
    dist.destroy_process_group()


main()
