import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SIDE = 1024


class Images(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((3, SIDE, SIDE), float(index))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = Images()
    sampler = DistributedSampler(data, shuffle=False)
    model = DDP(nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for batch in DataLoader(data, batch_size=16, sampler=sampler, num_workers=2):  # <- fault
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()


main()
