import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset, TensorDataset

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
inputs = torch.randn(101, 10)
data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
mine = Subset(data, range(rank, len(data), world))  # 51 and 50
loader = DataLoader(mine, batch_size=10)

model = DDP(nn.Linear(10, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for features, target in loader:
    loss = nn.functional.mse_loss(model(features), target)
    optimizer.zero_grad()
    loss.backward()  # <- fault
    optimizer.step()
print(f"rank {rank}: {len(loader)} steps")
