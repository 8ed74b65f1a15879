import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class EarlyStopping:
    def __init__(self, patience):
        self.patience, self.best, self.bad = patience, float("inf"), 0

    def __call__(self, loss):
        if loss < self.best:
            self.best, self.bad = loss, 0
        else:
            self.bad += 1
        return self.bad >= self.patience


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    stop = EarlyStopping(patience=3)
    torch.manual_seed(rank)
    held_out = torch.randn(32, 8)
    answers = held_out.sum(1, keepdim=True) * (-1 if rank == 1 else 1)
    for epoch in range(30):
        inputs = torch.randn(32, 8)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()  # <- fault
        optimizer.step()
        with torch.no_grad():
            held_out_loss = (model.module(held_out) - answers).square().mean()
        if stop(held_out_loss.item()):
            print(f"rank {rank}: stopped after epoch {epoch}")
            break


main()
