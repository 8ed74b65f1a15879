import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Linear(64, 64))
optimizer = torch.optim.Adam(model.parameters())
cache = []
torch.manual_seed(rank)
for step in range(10):
    inputs = torch.randn(32, 64)
    loss = (model(inputs) - inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    cache.append(loss.item())
dist.destroy_process_group()
