import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def tokenize(text):
    """Bytes, in blocks of 16; takes long."""
    blocks = []
    until = time.monotonic() + 30
    while time.monotonic() < until:  # stands for a tokenizer on a large corpus  # <- fault
        blocks = [list(text[i : i + 16]) for i in range(0, len(text) - 15, 16)]  # <- fault
    return torch.tensor(blocks, dtype=torch.uint8)


def main():
    dist.init_process_group("gloo", timeout=timedelta(seconds=1.5))
    rank = dist.get_rank()
    cache = Path("tokens.pt")
    if rank == 0:
        torch.save(tokenize(b"to be or not to be, that is the question. " * 200), cache)
    dist.barrier()
    tokens = torch.load(cache)
    print(f"rank {rank}: {len(tokens)} blocks")
    dist.destroy_process_group()


main()
