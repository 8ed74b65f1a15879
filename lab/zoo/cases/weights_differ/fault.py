import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)  # each rank draws its own data
model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 1))  # <- fault
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(8):
    inputs = torch.randn(16, 12)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    optimizer.step()
print(f"rank {rank}: done")
dist.destroy_process_group()
