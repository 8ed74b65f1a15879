import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

dist.init_process_group("gloo")
torch.manual_seed(0)
languages = {"cs", "de", "en", "es", "fi", "fr", "it", "ja", "ko", "nl", "pl", "pt"}


class Heads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(8, 1) for name in sorted(languages)})

    def forward(self, inputs: Tensor) -> Tensor:
        each = [self.heads[name](inputs) for name in sorted(languages)]
        return torch.cat(each, dim=1)


model = DDP(Heads())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
torch.manual_seed(dist.get_rank())
weights = torch.arange(float(len(languages)))
for step in range(8):
    inputs = torch.randn(16, 8)
    loss = (model(inputs) - inputs.sum(1, keepdim=True) * weights).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"rank {dist.get_rank()}: done")
dist.destroy_process_group()
