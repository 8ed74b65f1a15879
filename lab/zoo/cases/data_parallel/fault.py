import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = nn.DataParallel(nn.Linear(8, 1))  # <- fault
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(rank)
for step in range(10):
    inputs = torch.randn(8, 8)
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()  # <- fault
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"rank {rank}: done")
dist.destroy_process_group()
