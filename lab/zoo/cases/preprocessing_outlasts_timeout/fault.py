import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist


def tokenize(text):
    """Bytes, in blocks of 16; takes long."""
    blocks = []
    for part in range(120):  # stands for a tokenizer on a large corpus
        until = time.monotonic() + 1
        while time.monotonic() < until:  # <- fault
            blocks = [list(text[i : i + 16]) for i in range(0, len(text) - 15, 16)]  # <- fault
        print(f"part {part + 1} of 120", flush=True)  # <- fault
    return torch.tensor(blocks, dtype=torch.uint8)


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    preparing = dist.new_group(timeout=timedelta(seconds=10))
    cache = Path("tokens.pt")
    if rank == 0:
        torch.save(tokenize(b"to be or not to be, that is the question. " * 200), cache)
    dist.barrier(preparing)
    tokens = torch.load(cache)
    print(f"rank {rank}: {len(tokens)} blocks")
    dist.destroy_process_group()


main()
