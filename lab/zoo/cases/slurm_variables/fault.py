import os

import torch
import torch.distributed as dist

# sbatch expanded $SLURM_PROCID before srun could set it for each task, so all of them got the 0
# of the batch script's own shell.
os.environ["SLURM_PROCID"] = "0"
os.environ["SLURM_NTASKS"] = os.environ["WORLD_SIZE"]

rank = int(os.environ["SLURM_PROCID"])
world = int(os.environ["SLURM_NTASKS"])
dist.init_process_group("gloo", rank=rank, world_size=world)  # <- fault
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {rank}: {total.item():.0f} ranks")
dist.destroy_process_group()
