import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def augment(images):
    """Rotations and noise, on the CPU."""
    for _ in range(150 if dist.get_rank() == 1 else 2):  # rank 1's node has a slow library
        images = torch.rot90(images, 1, (-2, -1)) + 0.01 * torch.randn_like(images)  # <- fault
    return images


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Flatten(), nn.Linear(1024, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    torch.manual_seed(rank)
    for step in range(40):
        images = augment(torch.randn(16, 32, 32))  # <- fault
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(images), torch.randint(10, (16,))).backward()
        optimizer.step()
    print(f"rank {rank}: done")
    dist.destroy_process_group()


main()
