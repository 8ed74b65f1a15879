import os
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(local_rank, node, nproc):
    rank, world = node * nproc + local_rank, int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", rank=rank, world_size=world)
    for step in range(20):
        loss = torch.rand(1)
        dist.all_reduce(loss)
        time.sleep(0.1)  # stands for a step
    print(f"rank {rank}: {loss.item():.3f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    # The batch script starts one of these for each GPU, and each of them starts as many again.
    nproc = int(os.environ["LOCAL_WORLD_SIZE"])
    node = int(os.environ["GROUP_RANK"])
    mp.start_processes(train, (node, nproc), nproc, start_method="fork")  # <- fault
