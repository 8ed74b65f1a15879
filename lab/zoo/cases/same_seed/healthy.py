import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def batch(tokens, generator):
    """Random windows of the text, and what follows each of their tokens."""
    starts = torch.randint(len(tokens) - 17, (8,), generator=generator)
    windows = torch.stack([tokens[start : start + 17] for start in starts])
    return windows[:, :-1], windows[:, 1:]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1337)
    tokens = torch.randint(64, (2000,))
    model = DDP(nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1337 + rank)
    for step in range(12):
        inputs, targets = batch(tokens, generator)
        logits = model(inputs)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"rank {rank}: done")
    dist.destroy_process_group()


main()
