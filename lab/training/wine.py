"""Train a classifier on the Wine data, in one process or on any number of ranks.

    python -m lab.training.wine                                  # one process
    lab run -m lab.training.wine                                 # the topology's ranks
    torchrun --nproc-per-node 2 -m lab.training.wine             # by PyTorch's launcher

The batch size is per rank: with N ranks a step takes N times as many samples, and an epoch has
that many fewer steps.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.utils.data import DataLoader, DistributedSampler, Subset

from lab.errors import LabError, UsageError
from lab.parallel import DistributedDataParallel, MinimalDDP
from lab.training.arguments import ArgumentParser, count, positive_float, positive_int
from lab.training.checkpoint import checkpoint_folder, save_checkpoint
from lab.training.data import CLASSES, FEATURES, Sample, Split, wine_split
from lab.training.world import BACKENDS, World, join_world

PROGRAM = "lab.training.wine"


class WineClassifier(nn.Sequential):
    """An MLP, 13-64-3. In: standardised features [batch, 13]. Out: logits [batch, 3]. float32."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))


@dataclass
class Options:
    """What the command line can say. `python -m lab.training.wine --help` explains each."""

    epochs: int = 20
    batch_size: int = 32
    lr: float = 1e-3
    seed: int = 42
    save_every: int = 10
    parallel: Literal["none", "ddp"] | None = None
    impl: Literal["ours", "torch", "minimal"] = "ours"
    backend: str = "auto"


def parse(argv: Sequence[str] | None = None) -> Options:
    """Read the command line; a wrong one ends the process with one line and exit code 2."""
    parser = ArgumentParser(PROGRAM, description="Train a classifier on the Wine data.")
    add = partial(parser.add_argument, default=argparse.SUPPRESS)
    add("--epochs", type=positive_int, help="times through the training data (20)")
    add("--batch-size", type=positive_int, help="samples per step and rank (32)")
    add("--lr", type=positive_float, help="Adam's learning rate (0.001)")
    add("--seed", type=count, help="of the weights and of the shuffling (42)")
    add("--save-every", type=count, help="epochs between checkpoints; 0: none at all (10)")
    add("--parallel", choices=("none", "ddp"), help="(ddp where a launcher started ranks)")
    add(
        "--impl",
        choices=("ours", "torch", "minimal"),
        help="whose ddp: lab.parallel's, PyTorch's, or the one-page MinimalDDP (ours)",
    )
    add("--backend", choices=BACKENDS, help="(auto: nccl with a GPU for each rank, else gloo)")
    return Options(**vars(parser.parse_args(argv)))


def train(world: World, options: Options) -> None:
    """The whole of it: data, model, loop, table, checkpoints."""
    # Data. The sampler deals the training samples out, each epoch anew, the same number to each
    # rank: where they do not divide it repeats a few, so that no rank waits for another's batch.
    data = wine_split()
    sampler: DistributedSampler[Sample] = DistributedSampler(
        data.train, num_replicas=world.size, rank=world.rank, shuffle=True, seed=options.seed
    )
    loader = DataLoader(data.train, batch_size=options.batch_size, sampler=sampler)
    # A held-out sample that is repeated counts twice, so these are dealt out by stride instead.
    held_out = Subset(data.held_out, range(world.rank, len(data.held_out), world.size))

    # Model. The same seed makes the same weights on every rank; ddp broadcasts rank 0's anyway.
    torch.manual_seed(options.seed)
    model: nn.Module = WineClassifier().to(world.device)
    if options.parallel == "ddp":
        kinds = {"ours": DistributedDataParallel, "torch": TorchDDP, "minimal": MinimalDDP}
        model = kinds[options.impl](model)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.lr)

    if world.is_main:
        print_header(world, options, data)
    for epoch in range(1, options.epochs + 1):
        started = time.perf_counter()
        sampler.set_epoch(epoch)  # else every epoch has the order of the first
        model.train()
        loss_sum, samples = 0.0, 0
        for inputs, targets in loader:
            inputs, targets = inputs.to(world.device), targets.to(world.device)
            optimizer.zero_grad()
            loss = cross_entropy(model(inputs), targets)
            loss.backward()
            if isinstance(model, MinimalDDP):
                model.sync_grads()  # the others do this inside backward
            optimizer.step()
            loss_sum += loss.item() * len(targets)
            samples += len(targets)

        # Sums and counts travel, never means: the ranks may have unequal counts.
        loss_total, sample_total = world.sum(loss_sum, samples)
        seconds = time.perf_counter() - started
        correct, seen = world.sum(*evaluate(model, held_out, options.batch_size, world.device))
        if world.is_main:
            mean_loss, accuracy = loss_total / sample_total, correct / seen
            speed = sample_total / seconds
            print(f"{epoch:>5}  {mean_loss:>8.4f}  {accuracy:>8.4f}  {speed:>9.0f}", flush=True)
            last = epoch == options.epochs
            if options.save_every and (last or epoch % options.save_every == 0):
                save(checkpoint_folder() / "wine.pt", model, optimizer, epoch)


@torch.no_grad()
def evaluate(
    model: nn.Module, dataset: Subset[Sample], batch_size: int, device: torch.device
) -> tuple[int, int]:
    """How many of this rank's samples the model gets right, and how many there are."""
    model.eval()
    if isinstance(model, (DistributedDataParallel, MinimalDDP, TorchDDP)):
        model = model.module  # ranks may have unequal numbers of batches: no collectives here
    correct = 0
    for inputs, targets in DataLoader(dataset, batch_size=batch_size):
        predictions = model(inputs.to(device)).argmax(dim=1)
        correct += int((predictions == targets.to(device)).sum())
    return correct, len(dataset)


def print_header(world: World, options: Options, data: Split) -> None:
    """One line on what is trained and how, and the table's head."""
    how = f"ddp ({options.impl}, {world.backend})" if options.parallel == "ddp" else "one process"
    print(
        f"wine: {len(data.train)} samples to train on, {len(data.held_out)} held out, "
        f"{world.size} x batch {options.batch_size}, {how}, {world.device.type}\n"
        f"{'epoch':>5}  {'loss':>8}  {'accuracy':>8}  {'samples/s':>9}",
        flush=True,
    )


def save(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    """Save the bare model's state, so that the file loads with any number of ranks."""
    bare = model.module if isinstance(model, TorchDDP) else model  # ours add no prefix
    state = {"model": bare.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    try:
        save_checkpoint(state, path)
    except OSError as error:
        raise LabError(
            f"the checkpoint {path} could not be written: {error.strerror}; "
            "make room or rights there, or train without with --save-every 0"
        ) from error


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the command line says.

    Returns:
        The exit code: 0, or 2 where the command line or the environment is wrong.
    """
    options = parse(argv)
    try:
        with join_world(options.backend, group_of_one=options.parallel == "ddp") as world:
            if options.parallel is None:
                options.parallel = "none" if world.backend == "none" else "ddp"
            if options.parallel == "none" and world.size > 1:
                raise UsageError(
                    f"--parallel none on {world.size} ranks would train {world.size} models that "
                    "know nothing of each other: use --parallel ddp, or start one process"
                )
            train(world, options)
    except LabError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
