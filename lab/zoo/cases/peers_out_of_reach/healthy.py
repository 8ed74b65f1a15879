import torch
import torch.distributed as dist


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    generator = torch.Generator().manual_seed(rank)
    mine = torch.randn(1000, generator=generator)
    moments = torch.stack([mine.sum(), mine.square().sum(), torch.tensor(float(len(mine)))])
    dist.all_reduce(moments)
    mean = moments[0] / moments[2]
    deviation = (moments[1] / moments[2] - mean.square()).sqrt()
    if rank == 0:
        print(f"{size} ranks: mean {mean:.3f}, standard deviation {deviation:.3f}")
    dist.destroy_process_group()


main()
