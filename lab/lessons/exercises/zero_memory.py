"""ZeRO's memory table: who keeps what of parameters, gradients and states.

Exercise
    Training with Adam needs four numbers for each parameter: itself, its gradient and two states.
    Measure what a rank keeps of each under DDP, ZeRO 1, ZeRO 2 and FSDP (ZeRO 3). Then say how many
    parameters fit into a GPU.

Theory
    For S bytes of parameters on N ranks:

        method   parameters  gradients  states   together, N = 4   N = 64
        ddp      S           S          2 S      4 S               4 S
        zero1    S           S          2 S/N    2.5 S             2.03 S
        zero2    S           S/N        2 S/N    1.75 S            1.05 S
        fsdp     S/N         S/N        2 S/N    1 S               0.06 S

    Each stage shards what the one before repeats on every rank. What that costs in bytes on the
    wire is in the lesson `methods`. Parts are rounded up to whole elements; counted in these, the
    equality is exact, to the byte.

    Not in the table: activations, which depend on the batch and which none of these methods
    shards, and what is whole for a moment only: buckets, FSDP's unit that computes.

    In mixed precision with Adam the paper counts 16 bytes a parameter: 2 + 2 in half precision, and
    12 of states, float32 weights among them. Rajbhandari et al., "ZeRO: Memory Optimizations Toward
    Training Trillion Parameter Models", SC 2020, https://arxiv.org/abs/1910.02054.

Read
    lab/parallel/zero.py; lab/prove/resources.py, `held_formula`.
"""

import sys

from lab.lessons.notebook import Notebook, main
from lab.prove.measure import measure
from lab.prove.recipe import Recipe
from lab.training.methods import Parallel

SHARDED: dict[Parallel, tuple[bool, bool, bool]] = {
    "ddp": (False, False, False),
    "zero1": (False, False, True),
    "zero2": (False, True, True),
    "fsdp": (True, True, True),
}
"""Whether a method keeps parameters, gradients and states in N parts."""
FLOAT32 = (4, 4, 8)
"""Bytes of each of the three for one parameter, under Adam."""
MIXED = (2, 2, 12)
"""The same in mixed precision."""
GPU_BYTES = 80e9
RANKS = (1, 4, 8, 64, 1024)
"""Of the outlook."""


def exercise(notebook: Notebook) -> None:
    """Train a stack of equal layers by each method, count, and look ahead."""
    size = notebook.world.size
    rows = []
    for method in SHARDED:
        _, memory = measure(Recipe(parallel=method), notebook.world)
        kept = (memory.parameters, memory.gradients, memory.optimizer)
        parts = [max(by_rank) / memory.model for by_rank in kept]
        theory = bytes_per_parameter(method, size, FLOAT32) / FLOAT32[0]
        rows.append((method, *parts, memory.held / memory.model, theory))
        # `expected` is the same formula in whole elements: each rank's part is rounded up.
        notebook.expect(f"{method}: bytes that a rank keeps", memory.held, memory.expected)
        error = abs(memory.held / memory.model / theory - 1)
        notebook.expect_at_most(f"{method}: part by which they miss the table", error, 0.01)
    notebook.say(f"in units of S, on {size} ranks:")
    notebook.table(("method", "parameters", "gradients", "states", "together", "theory"), rows)

    notebook.say(f"10^9 parameters in {GPU_BYTES / 1e9:.0f} GB, mixed precision, no activations:")
    notebook.table(
        ("method", *(f"N = {ranks}" for ranks in RANKS)),
        [
            (method, *(GPU_BYTES / bytes_per_parameter(method, n, MIXED) / 1e9 for n in RANKS))
            for method in SHARDED
        ],
    )


def bytes_per_parameter(method: Parallel, ranks: int, sizes: tuple[int, int, int]) -> float:
    """What a rank keeps for each parameter of the model, by the theory's table."""
    pairs = zip(sizes, SHARDED[method], strict=True)
    return sum(size / ranks if sharded else size for size, sharded in pairs)


if __name__ == "__main__":
    sys.exit(main(exercise))
