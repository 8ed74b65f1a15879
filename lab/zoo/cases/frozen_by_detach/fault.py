import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


class Captioner(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(24, 32), nn.ReLU())  # <- fault
        self.decoder = nn.Linear(32, 10)

    def forward(self, images):
        with torch.no_grad():  # from the time when the encoder was a fixed one
            features = self.encoder(images)
        return self.decoder(features)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(Captioner(), find_unused_parameters=True)  # else it hangs
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    for step in range(12):
        images = torch.randn(8, 24)
        loss = nn.functional.cross_entropy(model(images), images[:, :10].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()  # <- fault
    print(f"rank {rank}: done")
    dist.destroy_process_group()


main()
