import collections
import time

import torch
import torch.distributed as dist


def vocabulary(lines):
    """The commonest words; takes long."""
    counts = collections.Counter()
    until = time.monotonic() + 60
    while time.monotonic() < until:  # stands for a corpus of some gigabytes  # <- fault
        for line in lines:  # <- fault
            counts.update(line.split())  # <- fault
    return [word for word, _ in counts.most_common(1000)]


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    words = [None]
    if rank == 0:
        words = [vocabulary(["the quick brown fox jumps over the lazy dog"] * 100)]
    dist.broadcast_object_list(words, src=0)
    embedding = torch.nn.Embedding(len(words[0]), 8)
    print(f"rank {rank}: {embedding}")
    dist.destroy_process_group()


main()
