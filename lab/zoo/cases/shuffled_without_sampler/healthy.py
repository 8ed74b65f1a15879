import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
features = torch.randn(120, 8)
data = TensorDataset(features, features @ torch.randn(8, 1))
model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())

sampler = DistributedSampler(data, seed=1234)
loader = DataLoader(data, batch_size=20, sampler=sampler)
for epoch in range(2):
    sampler.set_epoch(epoch)
    for inputs, targets in loader:
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"rank {rank}: done")
dist.destroy_process_group()
