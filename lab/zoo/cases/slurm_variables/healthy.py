import os

import torch
import torch.distributed as dist

# What srun sets for each task.
os.environ["SLURM_PROCID"] = os.environ["RANK"]
os.environ["SLURM_NTASKS"] = os.environ["WORLD_SIZE"]

rank = int(os.environ["SLURM_PROCID"])
world = int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", rank=rank, world_size=world)
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {rank}: {total.item():.0f} ranks")
dist.destroy_process_group()
