import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUMULATE = 4


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    torch.manual_seed(rank)
    for micro in range(16):
        inputs = torch.randn(8, 10)
        last = micro % ACCUMULATE == 0
        with contextlib.nullcontext() if last else model.no_sync():  # <- fault
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            (loss / ACCUMULATE).backward()  # <- fault
        if (micro + 1) % ACCUMULATE == 0:
            optimizer.step()  # <- fault
            optimizer.zero_grad()
    print(f"rank {rank}: done")
    dist.destroy_process_group()


main()
