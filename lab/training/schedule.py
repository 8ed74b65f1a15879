"""The learning rate of each step: a function of its number, so there is nothing to save."""

import math

from lab.training.options import Options


def scaled_lr(options: Options, world_size: int) -> float:
    """The learning rate after the warm-up.

    Linear: N ranks take N times the samples a step, and so an N-th of the steps (Goyal et al.,
    "Accurate, Large Minibatch SGD", 2017, https://arxiv.org/abs/1706.02677). The square root keeps
    the variance of an update (Krizhevsky, 2014, https://arxiv.org/abs/1404.5997); for Adam it is
    the usual one.
    """
    factors = {"none": 1.0, "linear": float(world_size), "sqrt": math.sqrt(world_size)}
    return options.lr * factors[options.scale_lr]


def schedule_factor(options: Options, step: int, steps: int) -> float:
    """What to multiply the learning rate by, in [0, 1].

    Args:
        options: say which schedule and how long the warm-up is.
        step: of the optimiser, from 0.
        steps: of the whole training.
    """
    if step < options.warmup:
        return (step + 1) / options.warmup
    done = min(1.0, (step - options.warmup) / max(1, steps - options.warmup))
    if options.schedule == "cosine":  # Loshchilov, Hutter, 2016, https://arxiv.org/abs/1608.03983
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1 - done if options.schedule == "linear" else 1.0
