import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


class Recurrent(nn.Module):
    """One block applied several times; its activations are computed again to save memory."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(32, 32), nn.Tanh())
        self.head = nn.Linear(32, 1)

    def forward(self, inputs):
        hidden = inputs.requires_grad_()
        for _ in range(3):
            hidden = checkpoint(self.block, hidden, use_reentrant=True)
        return self.head(hidden)


dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(Recurrent())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
torch.manual_seed(dist.get_rank())
for step in range(3):
    loss = model(torch.randn(8, 32)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()  # <- fault
    print(f"step {step}: {loss.item():.3f}")
dist.destroy_process_group()
