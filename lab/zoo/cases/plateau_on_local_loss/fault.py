import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Linear(6, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
    torch.manual_seed(rank)
    held_out = torch.randn(32, 6)
    answers = held_out.sum(1, keepdim=True) * (-1 if rank == 1 else 1)  # an odd part of the data
    for epoch in range(12):
        inputs = torch.randn(32, 6)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <- fault
        with torch.no_grad():
            held_out_loss = (model.module(held_out) - answers).square().mean()
        schedule.step(held_out_loss)
    print(f"rank {rank}: done")
    dist.destroy_process_group()


main()
