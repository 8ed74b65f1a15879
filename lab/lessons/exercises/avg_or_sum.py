"""AVG or SUM and a division: the same mean, and what each costs.

Exercise
    Average a tensor over the ranks in three ways: all-reduce with SUM and divide afterwards, divide
    before and then SUM, or let the backend do it with AVG. Compare the results and the times. Then
    do it to float16 gradients of 40000.

Theory
    Time: an all-reduce of S bytes moves 2 (N-1)/N S through each rank's link; a division reads and
    writes S bytes of memory, which is 10 to 1000 times as fast. So it hardly shows, and AVG can
    save no more than it. gloo's AVG is a SUM and a division inside; nccl scales on the way.

    Bits: dividing by a power of two changes the exponent alone, so at N = 2, 4, 8 all three agree
    in every bit. At N = 3 each term of the second way is rounded before the sum: off by about 1e-7.

    Range: float16 ends at 65504. 40000 + 40000 is infinity before anybody divides it; divided
    first, it never is. That is why torch's DDP divides first, and why it pays for float16 hooks.

Read
    lab/parallel/comm_hooks.py, `mean_of`: DDP's `mean` argument chooses among the three.
"""

import sys
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp

from lab.lessons.notebook import Notebook, main
from lab.lessons.vectors import apart

SIZES = (1024, 256 * 1024, 4 * 1024 * 1024)
"""Elements of float32."""
HALF_OF_RANGE = 40000.0
TOLERANCE = 1e-6


def exercise(notebook: Notebook) -> None:
    """Results, times, range."""
    world = notebook.world
    torch.manual_seed(world.rank)
    own = torch.randn(SIZES[1], device=world.device)
    after, before, average = (way(own.clone()) for way in (sum_then_divide, divide_then_sum, avg))
    notebook.expect_at_most("AVG, difference to SUM / N", apart(average, after), TOLERANCE)
    exact = world.size & (world.size - 1) == 0
    bound = 0.0 if exact else TOLERANCE
    what = f"divided before, difference at N = {world.size}"
    notebook.expect_at_most(what, apart(before, after), bound)

    rows = []
    for size in SIZES:
        tensor = torch.zeros(size, device=world.device)
        ways = {
            "sum alone": partial(dist.all_reduce, tensor),
            "sum, divide": partial(sum_then_divide, tensor),
            "divide, sum": partial(divide_then_sum, tensor),
            "avg": partial(avg, tensor),
            "divide alone": partial(tensor.div_, world.size),
        }
        times = notebook.seconds(ways)
        rows.append((f"{tensor.nbytes / 2**20:.3g} MiB", *(1e3 * t for t in times.values())))
    notebook.table(("median ms", *ways), rows)
    notebook.show(
        "AVG / (SUM and a division) at the largest size",
        times["avg"] / times["sum, divide"],
        "about 1",
    )
    share = times["divide alone"] / times["sum, divide"]
    notebook.show("share of the division", share, "a few percent at most")

    half = torch.full((4,), HALF_OF_RANGE, dtype=torch.float16, device=world.device)
    finite = {
        name: bool(way(half.clone()).isfinite().all())
        for name, way in (("SUM / N", sum_then_divide), ("divided before", divide_then_sum))
    }
    notebook.expect("float16 of 40000, SUM / N is finite", finite["SUM / N"], False)
    notebook.expect("float16 of 40000, divided before is finite", finite["divided before"], True)
    averaged = bool(avg(half.clone()).isfinite().all())
    if world.backend == "gloo":
        notebook.expect("float16 of 40000, AVG is finite (gloo)", averaged, False)
    else:
        notebook.show(f"float16 of 40000, AVG is finite ({world.backend})", averaged, True)


def sum_then_divide(tensor: Tensor) -> Tensor:
    """As one process that accumulates. In place, as the others."""
    dist.all_reduce(tensor, op=ReduceOp.SUM)
    return tensor.div_(dist.get_world_size())


def divide_then_sum(tensor: Tensor) -> Tensor:
    """As torch's DDP."""
    tensor.div_(dist.get_world_size())
    dist.all_reduce(tensor, op=ReduceOp.SUM)
    return tensor


def avg(tensor: Tensor) -> Tensor:
    """The backend's own."""
    dist.all_reduce(tensor, op=ReduceOp.AVG)
    return tensor


if __name__ == "__main__":
    sys.exit(main(exercise))
