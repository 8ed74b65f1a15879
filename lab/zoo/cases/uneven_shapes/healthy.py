import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
encoder = nn.Linear(16, 8)

# Every rank embeds its part of 103 documents; padding makes all parts the same size.
documents = torch.randn(103, 16, generator=torch.Generator().manual_seed(1))
padding = torch.zeros(-len(documents) % world, 16)
mine = torch.cat([documents, padding]).tensor_split(world)[rank]
with torch.no_grad():
    for first in range(0, len(mine), 10):
        vectors = encoder(mine[first : first + 10])
        parts = [torch.empty_like(vectors) for _ in range(world)]
        dist.all_gather(parts, vectors)
        if rank == 0:
            print(f"{first}: {[len(part) for part in parts]}")
    dist.barrier()
dist.destroy_process_group()
