import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class TwoTasks(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 32)
        self.boxes = nn.Linear(32, 4)
        self.masks = nn.Linear(32, 8)

    def forward(self, images, boxes, masks):
        hidden = self.body(images).relu()
        loss = (self.boxes(hidden) - boxes).square().mean()
        predicted = self.masks(hidden)
        if masks is None:  # some images have been given masks
            return loss + 0 * predicted.sum()
        return loss + (predicted - masks).square().mean()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(TwoTasks())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(rank)
    for step in range(6):
        images, boxes = torch.randn(8, 16), torch.rand(8, 4)
        masks = None if rank == 1 and step == 3 else torch.rand(8, 8)
        optimizer.zero_grad()
        loss = model(images, boxes, masks)
        loss.backward()
        optimizer.step()
        dist.barrier()
    dist.destroy_process_group()


main()
