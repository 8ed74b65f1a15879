"""Random numbers: the same where ranks must agree, other ones where they must not.

| what | depends on |
|---|---|
| weights | seed |
| order of the data | seed, epoch |
| dropout | seed, rank |
| augmentation | seed, the microbatch's place in the data and its rank: not the number of workers |
"""

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def derived(seed: int, *what: int | str) -> int:
    """A seed in [0, 2**63) for a part of a training: unlike others, however close the numbers.

    seed + rank would give rank 1 of seed 0 the random numbers of rank 0 of seed 1.
    """
    text = ",".join(map(str, (seed, *what))).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest()) >> 1


def seed_all(seed: int) -> None:
    """Seed everything that a model or a data set may draw from: torch, numpy, random."""
    torch.manual_seed(seed)  # all devices'
    np.random.seed(seed % 2**32)
    random.seed(seed)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed everything on the CPU inside, and go on afterwards as if nothing had been drawn."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
