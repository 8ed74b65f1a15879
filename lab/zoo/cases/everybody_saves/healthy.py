import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Linear(32, 32))
optimizer = torch.optim.AdamW(model.parameters())
torch.manual_seed(rank)
for step in range(1, 13):
    inputs = torch.randn(16, 32)
    loss = (model(inputs) - inputs).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 6 == 0 and rank == 0:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, f"checkpoint-{step}.pt")
dist.destroy_process_group()
