import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(64, 32)
        self.block = nn.Sequential(nn.Linear(32, 32), nn.Tanh())
        self.head = nn.Linear(32, 64, bias=False)
        self.head.weight = self.embedding.weight  # tied

    def forward(self, tokens):
        return self.head(self.block(self.embedding(tokens)))


dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (world,))
torch.manual_seed(0)
model = LanguageModel()
for part in (model.embedding, model.block, model.head):
    fully_shard(part, mesh=mesh)  # <- fault
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(rank)
for step in range(6):
    tokens = torch.randint(64, (4, 17))
    logits = model(tokens[:, :-1])  # <- fault
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()  # <- fault
    optimizer.step()
dist.destroy_process_group()
