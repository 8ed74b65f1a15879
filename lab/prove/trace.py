"""The same training twice, step by step: on N ranks, and in one process that plays all N.

How close they come, measured with gloo on 1, 2, 3, 4 and 8 ranks: bitwise on one and two, since a
sum of two has one order only. On more, a flat all-reduce in another order than rank order, so
gradients differ by up to 6e-8, and over 200 steps of Adam the parameters by up to 1.2e-7. Where
sums are taken in rank order, they are bitwise equal on any number of ranks.

Over very many steps the rounding can reach a kink: with 8 ranks one hidden unit's input at step
380 was 3e-7 on one side and 3e-8 on the other side of 0 for one sample, so the ReLU passed it in
only one of the two runs and the gradients differed by 3e-4. With 3 ranks that came at step 969,
with 4 not in 1000. That is float32, not a fault of the ranks, which stay bitwise equal throughout.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import count, islice

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler

from lab.prove.recipe import Recipe
from lab.prove.subjects import States, Subject, gradient_of
from lab.prove.wrapping import on_ranks, one_process
from lab.training.data import Sample, wine_split
from lab.training.wine import WineClassifier
from lab.training.world import World

Microbatch = tuple[int, Tensor, Tensor]
"""Epoch, inputs [batch, 13], targets [batch]."""


@dataclass
class Trace:
    """What happened in each of K steps to a model of P parameters."""

    epochs: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Of the batch that this process saw; the mean of all N where it plays all ranks."""
    gradients: list[Tensor] = field(default_factory=list)
    """K tensors [P] float32 on the CPU, as the optimiser got them."""
    parameters: list[Tensor] = field(default_factory=list)
    """K tensors [P] float32 on the CPU, as the optimiser left them."""
    states: list[States | None] = field(default_factory=list)
    """Of the optimiser, likewise; None where this rank does not know them."""
    sha256: list[str] = field(default_factory=list)
    """Of the parameters' bytes."""

    def step(self, epoch: int, loss: float, subject: Subject) -> None:
        """Take the optimiser's step and record what it started from and led to."""
        self.gradients.append(subject.gradients())
        subject.optimizer.step()
        self.parameters.append(subject.parameters())
        self.states.append(subject.states())
        self.sha256.append(hashlib.sha256(self.parameters[-1].numpy().tobytes()).hexdigest())
        self.epochs.append(epoch)
        self.losses.append(loss)


def batches(recipe: Recipe, rank: int, world_size: int) -> Iterator[list[Microbatch]]:
    """This rank's microbatches for each step, as torch's DistributedSampler deals them out."""
    data = wine_split().train
    sampler: DistributedSampler[Sample] = DistributedSampler(
        data, num_replicas=world_size, rank=rank, shuffle=True, seed=recipe.seed
    )
    loader = DataLoader(data, batch_size=recipe.batch_size, sampler=sampler)

    def endless() -> Iterator[Microbatch]:
        for epoch in count(1):
            sampler.set_epoch(epoch)
            for inputs, targets in loader:
                yield epoch, inputs, targets

    drawn = endless()
    for _ in range(recipe.steps):
        yield list(islice(drawn, recipe.accumulate))


def run_distributed(recipe: Recipe, world: World) -> Trace:
    """Train on all ranks. A collective: every rank calls it and gets its own trace.

    Each rank begins with weights of its own, so the broadcast at construction is proven as well.
    """
    torch.manual_seed(recipe.seed + world.rank)
    subject = on_ranks(recipe, WineClassifier().to(world.device), world.device)
    trace = Trace()
    for microbatches in batches(recipe, world.rank, world.size):
        subject.optimizer.zero_grad()
        loss = 0.0
        with subject.accumulating():
            for microbatch in microbatches[:-1]:
                loss += backward(recipe, subject, microbatch, world.device)
        loss += backward(recipe, subject, microbatches[-1], world.device)
        subject.finish_backward()
        trace.step(microbatches[0][0], loss, subject)
    subject.close()
    return trace


@cache
def run_one_process(recipe: Recipe, world_size: int, device: torch.device) -> Trace:
    """Train in this process alone what `world_size` ranks would train together.

    Each step accumulates every rank's microbatches as that rank does, adds the ranks' sums in rank
    order, and divides by their number. No collective and no wrapper takes part.
    """
    torch.manual_seed(recipe.seed)
    subject = one_process(recipe, WineClassifier().to(device))
    parameters = list(subject.model.parameters())
    trace = Trace()
    everybodys = [batches(recipe, rank, world_size) for rank in range(world_size)]
    for step in zip(*everybodys, strict=True):
        loss = 0.0
        totals: list[Tensor] = []
        for microbatches in step:
            subject.optimizer.zero_grad()
            for microbatch in microbatches:
                loss += backward(recipe, subject, microbatch, device)
            own = [gradient_of(parameter) for parameter in parameters]
            totals = [a + b for a, b in zip(totals, own, strict=True)] if totals else own
        for parameter, total in zip(parameters, totals, strict=True):
            parameter.grad = total / world_size
        trace.step(step[0][0][0], loss / world_size, subject)
    return trace


def backward(
    recipe: Recipe, subject: Subject, microbatch: Microbatch, device: torch.device
) -> float:
    """Add a microbatch's gradients; its loss, as its part of the step's."""
    _, inputs, targets = microbatch
    logits = subject.model(inputs.to(device)).float()
    loss = cross_entropy(logits, targets.to(device)) / recipe.accumulate
    loss.backward()
    return loss.item()
