"""SUM without the division by N, and what it does to the learning rate.

Exercise
    Average the gradients with a SUM and forget to divide by N. Train on 1, 2 and 4 ranks with the
    same samples in each step, and compare with the mean.

Theory
    The sum is N times the mean, so to SGD it is a learning rate N times as large:

        p - lr * sum  =  p - (N * lr) * mean

    Multiplying by 2 or 4 is exact in floating point, so there both sides are equal bit by bit.

    - On one rank nothing is wrong. The fault comes with the ranks: a run that learned on one
      diverges on four, though each step sees the same samples.
    - A small learning rate hides it: the run even learns faster.
    - Adam hides it at any: it divides a gradient by its own size, so a factor falls out, but for
      its epsilon. Nobody sees the fault until clipping or another optimiser comes in.
    - With the mean, N does not matter, as long as a step's samples stay the same.

    A learning rate that is scaled by N on purpose, with warm-up, is for steps with N times as many
    samples: Goyal et al., "Accurate, Large Minibatch SGD", 2017, https://arxiv.org/abs/1706.02677.

Read
    lab/parallel/minimal.py, `all_reduce_grads_`; `mean` in lab/parallel/ddp.py.
"""

import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam, Optimizer

from lab.lessons.notebook import Notebook, main
from lab.lessons.vectors import apart, parameters
from lab.training.data import wine_split
from lab.training.wine import WineClassifier

SIZES = (1, 2, 4)
SAMPLES = 128
"""Of each step, whatever N: a rank takes one N-th."""
STEPS = 10
SLOW, FAST = 0.1, 3.0
"""Learning rates of SGD; with the mean, it converges with both."""
ADAMS = 0.01


@dataclass(frozen=True)
class Run:
    """What came of a training."""

    first: float
    """Loss of all samples before the first step."""
    last: float
    """And after the last one."""
    parameters: Tensor
    """[P]"""


def exercise(notebook: Notebook) -> None:
    """Train by sum and by mean in groups of 1, 2 and 4 ranks."""
    device = notebook.world.device
    rows: list[tuple[str, float, float, float]] = []
    means: list[Run] = []
    for size in (size for size in SIZES if notebook.world.size % size == 0):
        # All groups of a size do the same, so that every rank is in one of them.
        group, _ = dist.new_subgroups(size)
        runs = {
            (kind, lr): [train(group, device, kind, lr, divide=divide) for divide in (False, True)]
            for kind, lr in ((SGD, SLOW), (SGD, FAST), (Adam, ADAMS))
        }
        for (kind, lr), (by_sum, by_mean) in runs.items():
            name = f"N = {size}, {kind.__name__}, lr {lr}"
            rows.append((name, by_sum.first, by_sum.last, by_mean.last))
        (slow, slow_mean), (fast, fast_mean), (adam, adam_mean) = runs.values()
        scaled = train(group, device, SGD, size * FAST, divide=True)
        means.append(slow_mean)

        n = f"N = {size}:"
        change = apart(fast.parameters, scaled.parameters)
        notebook.expect(f"{n} SUM at lr and mean at N lr differ by", change, 0.0)
        change = apart(slow_mean.parameters, means[0].parameters)
        notebook.expect_at_most(f"{n} mean, and one rank alone, differ by", change, 1e-5)
        change = apart(adam.parameters, adam_mean.parameters)
        notebook.expect_at_most(f"{n} Adam by SUM and by mean differ by", change, 1e-3)
        if size > 1:
            what = f"{n} lr {FAST}: loss by mean < at first < by SUM"
            words = f"{fast_mean.last:.2g} < {fast.first:.2g} < {fast.last:.2g}"
            diverged = fast_mean.last < fast.first < fast.last
            notebook.judge(what, diverged, words, "SUM diverges")
            what = f"{n} lr {SLOW}: loss by SUM < by mean"
            words = f"{slow.last:.2g} < {slow_mean.last:.2g}"
            notebook.judge(what, slow.last < slow_mean.last, words, "SUM is ahead")
    notebook.table(("loss", "at first", "then by SUM", "by mean"), rows)


def train(
    group: dist.ProcessGroup,
    device: torch.device,
    kind: type[Optimizer],
    lr: float,
    *,
    divide: bool,
) -> Run:
    """Some steps on the same samples, dealt out to the ranks of the group."""
    torch.manual_seed(0)
    model = WineClassifier().to(device)
    optimizer = kind(model.parameters(), lr=lr)  # type: ignore[call-arg]  # both have it
    inputs, targets = (tensor[:SAMPLES].to(device) for tensor in wine_split().train.tensors)
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    losses = []
    for _ in range(STEPS):
        losses.append(cross_entropy(model(inputs), targets).item())
        optimizer.zero_grad()
        cross_entropy(model(inputs[rank::size]), targets[rank::size]).backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad, group=group)
            if divide:
                parameter.grad /= size
        optimizer.step()
    last = cross_entropy(model(inputs), targets).item()
    return Run(losses[0], last, parameters(model))


if __name__ == "__main__":
    sys.exit(main(exercise))
