import fcntl

import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 1:
        dist.barrier()
    with open("vocabulary.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # <- fault
        if rank == 0:
            torch.save(torch.arange(1000), "vocabulary.pt")
            dist.barrier()
        vocabulary = torch.load("vocabulary.pt")
        dist.barrier()  # <- fault
    print(f"rank {rank}: {len(vocabulary)} words")
    dist.destroy_process_group()


main()
