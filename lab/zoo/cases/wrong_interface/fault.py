import os

import torch
import torch.distributed as dist

os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # from a note on the internet

dist.init_process_group("gloo")  # <- fault
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {dist.get_rank()}: {total.item():.0f} ranks")
dist.destroy_process_group()
