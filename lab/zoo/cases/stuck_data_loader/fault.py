import fcntl

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset


class Shards(Dataset):
    """Samples behind one lock file per rank, as tools for shared archives have it."""

    def __init__(self, rank):
        self.rank = rank
        self.samples = torch.randn(64, 8, generator=torch.Generator().manual_seed(rank))

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        with open(f"shard-{self.rank}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # <- fault
            return self.samples[index]


dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = DDP(nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
held = open(f"shard-{rank}.lock", "w")
for step, batch in enumerate(DataLoader(Shards(rank), batch_size=8)):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
    if step == 3 and rank == 1:
        fcntl.flock(held, fcntl.LOCK_EX)  # <- fault
    print(f"rank {rank}: step {step}")
dist.destroy_process_group()
