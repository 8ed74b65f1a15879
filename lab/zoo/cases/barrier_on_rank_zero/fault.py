import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.AdamW(model.parameters())

torch.manual_seed(rank)
for step in range(1, 21):
    features = torch.randn(32, 16)
    loss = nn.functional.mse_loss(model(features), features.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 and rank == 0:
        torch.save(model.module.state_dict(), "model.pt")
        print(f"step {step}: saved")
        dist.barrier()  # <- fault

dist.destroy_process_group()
