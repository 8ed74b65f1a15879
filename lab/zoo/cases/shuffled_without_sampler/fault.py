import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
features = torch.randn(120, 8)
data = TensorDataset(features, features @ torch.randn(8, 1))
model = DDP(nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters())

torch.manual_seed(1234 + rank)  # "so that each rank shuffles differently"
loader = DataLoader(data, batch_size=20, shuffle=True)
for epoch in range(2):
    for inputs, targets in loader:  # <- fault
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"rank {rank}: done")
dist.destroy_process_group()
