import torch
import torch.distributed as dist
from torch import nn


def main():
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(12):
        inputs = torch.randn(8, 64)
        loss = nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        works = []
        for parameter in model.parameters():
            parameter.grad /= world_size
            works.append(dist.all_reduce(parameter.grad, async_op=True))  # <- fault
        optimizer.step()  # <- fault
        for work in works:
            work.wait()
    print(f"rank {rank}: done")
    dist.destroy_process_group()


main()
