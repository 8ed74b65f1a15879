import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, clean):
        noisy = clean + 0.1 * torch.randn_like(clean)
        return (self.layers(noisy) - clean).square().mean()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Denoiser())
    optimizer = torch.optim.Adam(model.parameters())
    torch.manual_seed(rank)
    for step in range(10):
        clean = torch.randn(8, 16)
        loss = model(clean)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {rank}: done")
    dist.destroy_process_group()


main()
