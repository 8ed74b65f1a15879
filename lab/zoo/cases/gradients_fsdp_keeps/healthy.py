import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

ACCUMULATE = 4


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    model = fully_shard(nn.Linear(10, 4), mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    torch.manual_seed(rank)
    for micro in range(16):
        inputs = torch.randn(8, 10)
        last = (micro + 1) % ACCUMULATE == 0
        model.set_requires_gradient_sync(last)
        loss = (model(inputs) - inputs[:, :4]).square().mean()
        (loss / ACCUMULATE).backward()
        if (micro + 1) % ACCUMULATE == 0:
            optimizer.step()
            optimizer.zero_grad()
    print(f"rank {rank}: done")
    dist.destroy_process_group()


main()
