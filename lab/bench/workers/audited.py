"""A training in torch's DDP that prints how long its steps took. Run by `lab bench audit`.

python -m lab.bench.workers.audited mlp|gpt STEPS
"""

import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from lab.bench.workers.models import mlp, samples
from lab.training.gpt import GptOptions, loss
from lab.training.gpt_model import GPT

WIDTH, BATCH = 512, 128
WINDOWS = 16


def _mlp() -> Callable[[], None]:
    model = DistributedDataParallel(mlp(WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    inputs, targets = samples(BATCH, WIDTH, torch.device("cpu"))

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(inputs), targets).backward()
        optimizer.step()

    return step


def _gpt() -> Callable[[], None]:
    options = GptOptions()
    torch.manual_seed(0)
    model = DistributedDataParallel(
        GPT(options.context, options.width, options.heads, options.layers)
    )
    optimizer = torch.optim.Adam(model.parameters())
    batch = torch.randint(0, 128, (2, WINDOWS, options.context)).unbind()

    def step() -> None:
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()

    return step


MODELS = {"mlp": _mlp, "gpt": _gpt}


def main() -> None:
    """Train; rank 0 prints the seconds from the first step to the end of the last."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    step, steps = MODELS[sys.argv[1]](), int(sys.argv[2])
    dist.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        step()
    dist.barrier()
    if dist.get_rank() == 0:
        print(f"took {time.perf_counter() - began:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
