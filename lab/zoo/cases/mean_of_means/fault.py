import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    torch.manual_seed(rank)
    size = 24 if rank == 0 else 6  # bucketed by length: batches of very different size
    for step in range(6):
        inputs = torch.randn(size, 10) * (1 + 2 * rank)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)  # <- fault
        mean /= world
        if rank == 0:
            print(f"step {step}: loss {mean.item():.5f}")  # <- fault
    dist.destroy_process_group()


main()
