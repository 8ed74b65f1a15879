import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

IGNORE = -100  # the label of a token that does not count


def batches(rank):
    generator = torch.Generator().manual_seed(rank)
    for step in range(8):
        tokens = torch.randint(0, 50, (4, 16), generator=generator)
        labels = tokens.clone()
        if rank == 5 and step == 4:
            labels[:] = IGNORE  # a batch of nothing but padding
        yield tokens, labels


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.Embedding(50, 32), nn.Linear(32, 50)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step, (tokens, labels) in enumerate(batches(rank)):
        count = (labels != IGNORE).sum()
        dist.all_reduce(count)
        logits = model(tokens)
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum"
        )
        optimizer.zero_grad()
        (loss / count.clamp(min=1)).backward()
        optimizer.step()
        if rank == 0:
            print(f"step {step}: {count} tokens")
    dist.destroy_process_group()


main()
