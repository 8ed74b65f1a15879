"""The same training twice, step by step: on N ranks, and in one process that plays all N.

How close they come, measured with gloo on 1, 2, 3, 4 and 8 ranks: bitwise on one and two, since a
sum of two has one order only. On more, a flat all-reduce sums in another order than rank order, so
gradients differ by up to 6e-8, and over 200 steps of Adam the parameters by up to 1.2e-7. The
ordered all-reduce is bitwise equal on any number of ranks.

Over very many steps the rounding can reach a kink: with 8 ranks one hidden unit's input at step
380 was 3e-7 on one side and 3e-8 on the other side of 0 for one sample, so the ReLU passed it in
only one of the two runs and the gradients differed by 3e-4. With 3 ranks that came at step 969,
with 4 not in 1000. That is float32, not a fault of the ranks, which stay bitwise equal throughout.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.utils.data import DataLoader, DistributedSampler

from lab.parallel import DistributedDataParallel, MinimalDDP, ZeroRedundancyOptimizer
from lab.parallel.comm_hooks import ordered_hook
from lab.training.data import Sample, wine_split
from lab.training.wine import WineClassifier
from lab.training.world import World


@dataclass(frozen=True)
class Recipe:
    """What is trained: the Wine classifier, for some steps, over as many epochs as they need."""

    steps: int = 20
    batch_size: int = 32
    """Per rank. The last batch of an epoch is smaller; it is so on all ranks."""
    optimizer: Literal["adam", "sgd"] = "adam"
    learning_rate: float = 1e-3
    seed: int = 42
    parallel: Literal["ddp", "zero1"] = "ddp"
    """zero1: ddp, with the optimiser's states in N parts."""
    impl: Literal["ours", "torch", "minimal"] = "ours"
    all_reduce: Literal["flat", "ordered"] = "flat"
    """Ordered: sums in rank order, bitwise equal to one process at any N. Ours only."""
    bucket_cap_mb: float = 25.0
    """MiB. 0: each gradient by itself. Not for minimal, like the next two."""
    find_unused_parameters: bool = False
    static_graph: bool = False

    def __post_init__(self) -> None:
        """Never run something else than was asked for.

        Raises:
            ValueError: an option that this implementation does not have.
        """
        if self.all_reduce == "ordered" and self.impl != "ours":
            raise ValueError(f"the ordered all-reduce is in impl ours only, not in {self.impl}")
        if self.parallel != "ddp" and self.impl == "minimal":
            raise ValueError(f"impl minimal has no {self.parallel}")
        buckets = self.bucket_cap_mb != 25 or self.find_unused_parameters or self.static_graph
        if buckets and self.impl == "minimal":
            raise ValueError("impl minimal has no buckets, and no options for them")

    def replica_of(self, model: nn.Module) -> nn.Module:
        """The model, wrapped. A collective."""
        if self.impl == "minimal":
            return MinimalDDP(model)
        options: dict[str, Any] = {
            "bucket_cap_mb": self.bucket_cap_mb,
            "find_unused_parameters": self.find_unused_parameters,
            "static_graph": self.static_graph,
        }
        if self.impl == "torch":
            return TorchDDP(model, **options)
        replica = DistributedDataParallel(model, **options)
        if self.all_reduce == "ordered":
            replica.register_comm_hook(None, ordered_hook)
        return replica

    def optimizer_of(self, model: nn.Module, shard: bool = False) -> torch.optim.Optimizer:
        """A fresh optimiser, or the ranks' part of one."""
        kind = torch.optim.Adam if self.optimizer == "adam" else torch.optim.SGD
        if not shard or self.parallel == "ddp":
            return kind(model.parameters(), lr=self.learning_rate)
        zero: Any = ZeroRedundancyOptimizer
        if self.impl == "torch":
            from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZero  # slow

            zero = TorchZero
        optimizer: torch.optim.Optimizer = zero(model.parameters(), kind, lr=self.learning_rate)
        return optimizer


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
    sha256: list[str] = field(default_factory=list)
    """Of the parameters' bytes."""

    def step(
        self, epoch: int, loss: float, model: nn.Module, optimizer: torch.optim.Optimizer
    ) -> None:
        """Take the optimiser's step and record what it started from and led to."""
        trained = list(model.parameters())
        self.gradients.append(_flat(p.grad for p in trained if p.grad is not None))
        optimizer.step()
        self.parameters.append(_flat(trained))
        self.sha256.append(hashlib.sha256(self.parameters[-1].numpy().tobytes()).hexdigest())
        self.epochs.append(epoch)
        self.losses.append(loss)


def batches(recipe: Recipe, rank: int, world_size: int) -> Iterator[tuple[int, Tensor, Tensor]]:
    """This rank's (epoch, inputs, targets) for each step, as `lab.training.wine` draws them."""
    data = wine_split().train
    sampler: DistributedSampler[Sample] = DistributedSampler(
        data, num_replicas=world_size, rank=rank, shuffle=True, seed=recipe.seed
    )
    loader = DataLoader(data, batch_size=recipe.batch_size, sampler=sampler)

    def endless() -> Iterator[tuple[int, Tensor, Tensor]]:
        for epoch in count(1):
            sampler.set_epoch(epoch)
            for inputs, targets in loader:
                yield epoch, inputs, targets

    return islice(endless(), recipe.steps)


def run_distributed(recipe: Recipe, world: World) -> Trace:
    """Train data-parallel. A collective: every rank calls it and gets its own trace.

    Each rank begins with weights of its own, so the broadcast at construction is proven as well.
    """
    torch.manual_seed(recipe.seed + world.rank)
    bare = WineClassifier().to(world.device)
    model = recipe.replica_of(bare)
    optimizer = recipe.optimizer_of(model, shard=True)
    trace = Trace()
    for epoch, inputs, targets in batches(recipe, world.rank, world.size):
        optimizer.zero_grad()
        loss = cross_entropy(model(inputs.to(world.device)), targets.to(world.device))
        loss.backward()
        if isinstance(model, MinimalDDP):
            model.sync_grads()
        trace.step(epoch, loss.item(), model, optimizer)
    return trace


def run_one_process(recipe: Recipe, world_size: int, device: torch.device) -> Trace:
    """Train in this process alone what `world_size` ranks would train together.

    Each step accumulates the gradients of the ranks' batches, in rank order, and divides by their
    number. No collective and no wrapper takes part.
    """
    torch.manual_seed(recipe.seed)
    model = WineClassifier().to(device)
    optimizer = recipe.optimizer_of(model)
    trace = Trace()
    shards = [batches(recipe, rank, world_size) for rank in range(world_size)]
    for microbatches in zip(*shards, strict=True):
        optimizer.zero_grad()
        losses = []
        for _, inputs, targets in microbatches:
            loss = cross_entropy(model(inputs.to(device)), targets.to(device))
            loss.backward()
            losses.append(loss.item())
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad /= world_size
        trace.step(microbatches[0][0], sum(losses) / world_size, model, optimizer)
    return trace


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors]).cpu()
