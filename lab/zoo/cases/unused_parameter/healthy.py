import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(20, 64), nn.ReLU())
        self.head = nn.Linear(64, 5)

    def forward(self, inputs):
        return self.head(self.body(inputs))


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = DDP(Classifier())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(dist.get_rank())
    for step in range(5):
        inputs = torch.randn(16, 20)
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits, inputs[:, :5].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step}: {loss.item():.3f}")
    dist.destroy_process_group()


main()
