import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, random_split


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    data = TensorDataset(torch.arange(800.0).view(100, 8) / 800)
    train, held_out = random_split(data, [80, 20])  # <- fault
    model = DDP(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(train)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for (inputs,) in DataLoader(train, batch_size=8, sampler=sampler):
            optimizer.zero_grad()
            (model(inputs) - inputs).square().mean().backward()
            optimizer.step()
    loss = (model.module(torch.stack([row for (row,) in held_out])) - 0.5).square().mean()
    print(f"rank {rank}: {loss.item():.4f}")
    dist.destroy_process_group()


main()
