"""Replicas without the broadcast or without the all-reduce, and the step at which they part.

Exercise
    Data parallelism keeps one model on N ranks by two acts: a broadcast before the first step, and
    an average of the gradients in each. Leave one of them out: nothing fails. Compare a checksum of
    the parameters after each step.

Theory
    - With both, equal at step 0 and the same update on every rank: equal for ever, bit by bit.
    - No broadcast, each rank with weights of its own: apart at step 0. All ranks still get the same
      averaged gradients, so plain SGD moves all replicas by the same step, and the distance between
      them stays what it was. N models, and each is trained by gradients of all the others.
    - No broadcast, but one seed: equal. So a missing broadcast goes unnoticed, until a checkpoint
      is loaded on rank 0 alone.
    - No all-reduce: equal at step 0, apart from step 1 on, as each rank follows its own samples.
    - No all-reduce, and no sampler, so that all ranks draw the same samples: equal for ever, and
      useless. N ranks compute what one of them would have.

    Of these four faults checksums find the first and the third. Give each rank a seed of its own to
    find the second, and compare the ranks' samples to find the last.

Read
    lab/parallel/minimal.py; lab/parallel/replicas.py.
"""

import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

from lab.lessons.notebook import Notebook, main
from lab.lessons.vectors import apart, parameters
from lab.parallel import all_reduce_grads_
from lab.training.data import wine_split
from lab.training.wine import WineClassifier
from lab.training.world import World

STEPS = 10
LEARNING_RATE = 0.1
NEVER = "never"


@dataclass(frozen=True)
class Variant:
    """A way to train replicas, and when theory has them part."""

    title: str
    parts_at: int | str
    broadcast: bool = True
    all_reduce: bool = True
    one_seed: bool = False
    one_batch: bool = False


VARIANTS = (
    Variant("broadcast and all-reduce", NEVER),
    Variant("no broadcast", 0, broadcast=False),
    Variant("no broadcast, one seed", NEVER, broadcast=False, one_seed=True),
    Variant("no all-reduce", 1, all_reduce=False),
    Variant("no all-reduce, one batch for all", NEVER, all_reduce=False, one_batch=True),
)


def exercise(notebook: Notebook) -> None:
    """Train each variant and compare the ranks after every step."""
    rows = []
    for variant in VARIANTS:
        steps = [notebook.gather(parameters) for parameters in train(variant, notebook.world)]
        checksums = [[checksum(replica) for replica in replicas] for replicas in steps]
        distances = [distance(replicas) for replicas in steps]
        parted = next((n for n, sums in enumerate(checksums) if len(set(sums)) > 1), NEVER)
        first, last = (" ".join(checksums[step][:2]) for step in (0, -1))
        rows.append((variant.title, first, last, distances[0], distances[-1]))
        notebook.expect(f"{variant.title}: parted at step", parted, variant.parts_at)
        if variant.parts_at == 0:
            change = max(abs(later - distances[0]) for later in distances)
            notebook.expect_at_most("  change of the distance between them", change, 1e-5)
    notebook.say(f"checksums of ranks 0 and 1, largest distance; steps 0 and {STEPS}")
    notebook.table(("variant", "step 0", f"step {STEPS}", "distance", "then"), rows)


def train(variant: Variant, world: World) -> Iterator[Tensor]:
    """This rank's parameters, [P], before the first step and after each."""
    torch.manual_seed(0 if variant.one_seed else world.rank)
    model = WineClassifier().to(world.device)
    if variant.broadcast:
        for parameter in model.parameters():
            dist.broadcast(parameter.detach(), 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    inputs, targets = (tensor.to(world.device) for tensor in wine_split().train.tensors)
    mine = slice(0 if variant.one_batch else world.rank, None, world.size)
    yield parameters(model).cpu()
    for _ in range(STEPS):
        optimizer.zero_grad()
        cross_entropy(model(inputs[mine]), targets[mine]).backward()
        if variant.all_reduce:
            all_reduce_grads_(model)
        optimizer.step()
        yield parameters(model).cpu()


def checksum(parameters: Tensor) -> str:
    """Of every bit."""
    return hashlib.sha256(parameters.numpy().tobytes()).hexdigest()[:8]


def distance(replicas: list[Tensor]) -> float:
    """The largest difference of any parameter between rank 0 and another rank."""
    return max(apart(replica, replicas[0]) for replica in replicas)


if __name__ == "__main__":
    sys.exit(main(exercise))
