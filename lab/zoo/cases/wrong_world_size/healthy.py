import argparse
import os

import torch
import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--gpus", type=int, default=int(os.environ["WORLD_SIZE"]))
    args = parser.parse_args()

    world_size = args.gpus
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=world_size)
    total = torch.ones(1)
    dist.all_reduce(total)
    print(f"{total.item():.0f} ranks")
    dist.destroy_process_group()


main()
