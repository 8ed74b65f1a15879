import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Lines(Dataset):
    def __init__(self):
        self.lines = [f"{i},{i * 2},{i * 3},{i * 7 % 5}" for i in range(64)]
        self.lines[37] = "37,74,n/a,4"

    def __len__(self):
        return len(self.lines)

    def __getitem__(self, index):
        *features, label = self.lines[index].split(",")
        return torch.tensor([float(value) for value in features]), int(label)  # <- fault


dist.init_process_group("gloo")
torch.manual_seed(0)
data = Lines()
loader = DataLoader(data, batch_size=4, sampler=DistributedSampler(data, shuffle=False))
model = DDP(nn.Linear(3, 5))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for features, label in loader:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(features), label).backward()
    optimizer.step()
dist.destroy_process_group()
