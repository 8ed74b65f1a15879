import argparse

import torch
import torch.distributed as dist


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("total_epochs", type=int)
    parser.add_argument("save_every", type=int)
    args = parser.parse_args(["--total_epochs", "2", "--save_every", "1"])

    dist.init_process_group("gloo")
    for epoch in range(args.total_epochs):
        loss = torch.rand(1)
        dist.all_reduce(loss)
        if dist.get_rank() == 0 and epoch % args.save_every == 0:
            print(f"epoch {epoch}: {loss.item():.3f}")
    dist.destroy_process_group()


main()
