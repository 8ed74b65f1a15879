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
        total = (model(inputs) - inputs.sum(1, keepdim=True)).square().sum()
        count = torch.tensor(float(size))
        dist.all_reduce(count)
        optimizer.zero_grad()
        (total * world / count).backward()
        optimizer.step()
        mean = total.detach().clone()
        dist.all_reduce(mean)
        mean /= count
        if rank == 0:
            print(f"step {step}: loss {mean.item():.5f}")
    dist.destroy_process_group()


main()
