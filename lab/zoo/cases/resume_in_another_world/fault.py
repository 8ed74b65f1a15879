import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def shard_file(rank):
    return Path(f"checkpoint/{SAVED_BY}-of-ranks-{rank}.pt")


def local_state(model):
    return {name: value.to_local() for name, value in model.state_dict().items()}


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
SAVED_BY = 4  # the run that was interrupted had more ranks
torch.manual_seed(0)
model = nn.Linear(16, 16)
if rank == 0:
    os.makedirs("checkpoint", exist_ok=True)
    for number in range(SAVED_BY):  # stands for that run
        shard = {name: value.chunk(SAVED_BY)[number] for name, value in model.state_dict().items()}
        torch.save(shard, shard_file(number))
dist.barrier()

fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
saved = torch.load(shard_file(rank))
for name, value in local_state(model).items():
    value.copy_(saved[name])  # <- fault
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(rank)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(4, 16)).square().mean().backward()
    optimizer.step()
dist.destroy_process_group()
