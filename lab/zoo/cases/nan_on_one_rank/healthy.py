import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    for step in range(10):
        sizes = torch.rand(16, 8) + 0.1
        if rank == 2 and step == 6:
            sizes[3, 2] = -1.0  # somebody wrote -1 for "not known"
        inputs = sizes.clamp(min=0.1).log()
        loss = (model(inputs) - sizes.mean(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {rank}: done")
    dist.destroy_process_group()


main()
