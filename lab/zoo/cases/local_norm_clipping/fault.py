import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def clip(parameters, limit):
    """What clip_grad_norm_ does, for shards: the norm of what this rank has."""
    grads = [parameter.grad.to_local() for parameter in parameters]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))
    for grad in grads:
        grad.mul_(torch.clamp(limit / (norm + 1e-6), max=1.0))
    return norm


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 16))
fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(rank)
for step in range(10):
    inputs = torch.randn(8, 16) * (1 + step)
    optimizer.zero_grad()
    (model(inputs) - 10 * inputs).square().mean().backward()
    clip(list(model.parameters()), 0.5)
    optimizer.step()  # <- fault
print(f"rank {rank}: done")
dist.destroy_process_group()
