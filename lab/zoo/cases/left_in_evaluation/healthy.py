import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
network = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
model = DDP(network)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(rank)
validation = torch.randn(32, 8)
for epoch in range(3):
    for step in range(6):
        inputs = torch.randn(16, 8)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if rank == 0:
        network.eval()
        with torch.no_grad():
            error = (network(validation) - validation.sum(1, keepdim=True)).square().mean()
        network.train()
        print(f"epoch {epoch}: {error:.4f} on what rank 0 holds out")
print(f"rank {rank}: done")
dist.destroy_process_group()
