import os
import signal

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Linear(16, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(rank)
for step in range(10):
    inputs = torch.randn(8, 16)
    optimizer.zero_grad()
    (model(inputs) - inputs).square().mean().backward()
    optimizer.step()
    if step == 5 and rank == 2:
        os.kill(os.getpid(), signal.SIGSTOP)  # <- fault
print(f"rank {rank}: done")
dist.destroy_process_group()
