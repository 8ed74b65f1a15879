import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 4))

    def forward(self, inputs):
        return self.layers(inputs)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)  # everything is to be reproducible
    model = DDP(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for step in range(10):
        inputs = torch.randn(8, 16, generator=generator)
        logits = model(inputs)  # <- fault
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits, inputs[:, :4].argmax(1)).backward()
        optimizer.step()
    print(f"rank {rank}: done")
    dist.destroy_process_group()


main()
