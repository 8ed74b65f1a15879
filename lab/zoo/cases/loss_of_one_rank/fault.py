import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Linear(10, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    torch.manual_seed(rank)
    for epoch in range(5):
        total = torch.zeros(())
        for _ in range(4):
            inputs = torch.randn(16, 10) * (1 + rank)
            loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() / 4
        if rank == 0:
            print(f"epoch {epoch}: loss {total.item():.5f}")  # <- fault
    dist.destroy_process_group()


main()
