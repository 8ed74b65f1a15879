"""The smallest distributed script: says when its first all-reduce has ended. Run by `startup`."""

import time

import torch
import torch.distributed as dist


def main() -> None:
    """Print `first all-reduce ended at SECONDS` (since the epoch)."""
    dist.init_process_group("gloo")
    ones = torch.ones(1)
    dist.all_reduce(ones)
    print(f"first all-reduce ended at {time.time():.6f}", flush=True)
    assert ones.item() == dist.get_world_size()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
