"""The training loop, from the first batch to the last checkpoint, on any number of ranks.

    trainer = Trainer(Net, dataset, Options(epochs=3), world, loss=loss)
    trainer.train()

The file reads from top to bottom: what is set up, the loop, one step, what happens between steps.
Beside it are only what one can leave for later: `order.py` says which samples a step takes,
`wrapping.py` what DDP, FSDP and ZeRO make of the model, `reporting.py` prints.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from lab.errors import LabError, UsageError
from lab.training.checkpoint import checkpoint_folder
from lab.training.checkpoints import Checkpoints
from lab.training.options import Options, microbatches
from lab.training.order import Order, Place, RankOrder, Samples, load
from lab.training.reporting import Reporter
from lab.training.schedule import scaled_lr, schedule_factor
from lab.training.seeding import derived, seed_all
from lab.training.world import World
from lab.training.wrapping import OptimizerMaker, Parallel, Units, children_with_parameters

Loss = Callable[[nn.Module, Any], tuple[Tensor, int]]
"""Of the model and a batch: the mean over the batch's items, and how many they are."""
Evaluate = Callable[[nn.Module, Any], Sequence[float]]
"""Of the model and a batch: the sum of each score over the batch's samples."""
CHECK_EVERY = 50
"""Steps after which the ranks exchange losses at the latest, so that a NaN does not go far."""
ROLLBACKS = 3
"""How often a training goes back, before it is given up."""


class Trainer:
    """Trains one model on one data set. Everything that is collective, all ranks do alike."""

    def __init__(
        self,
        build: Callable[[], nn.Module],
        data: Samples,
        options: Options,
        world: World,
        *,
        loss: Loss,
        optimizer: OptimizerMaker = torch.optim.Adam,
        groups: Callable[[nn.Module], Iterable[Any]] = nn.Module.parameters,
        units: Units = children_with_parameters,
        held_out: Samples | None = None,
        evaluate: Evaluate | None = None,
        scores: Sequence[str] = (),
        name: str = "training",
        items: str = "samples",
    ) -> None:
        """Build the model, the same on every rank, and wrap it. A collective.

        Args:
            build: makes the bare model. It is called after seeding.
            data: to train on, the same on every rank; `len` and an item for each index.
            options: see `Options`.
            world: the ranks, from `join_world`.
            loss: see `Loss`. Called in training mode under autocast.
            optimizer: a class or a partial of it; the learning rate is the options'.
            groups: the optimiser's parameters or groups, of the wrapped model.
            units: what FSDP gathers at once, and activation checkpointing computes twice.
            held_out: to evaluate on.
            evaluate: see `Evaluate`. Called in evaluation mode without gradients.
            scores: what it gives, by name.
            name: of the checkpoints' folder and the first line.
            items: what the speed counts.

        Raises:
            UsageError: options that do not fit the data, the ranks or each other.
        """
        self.options, self.world, self.data, self.loss = options, world, data, loss
        self.held_out, self.evaluate, self.scores = held_out, evaluate, scores
        self.name, self.items = name, items
        self.samples = len(data)
        if self.samples < world.size:
            raise UsageError(
                f"{self.samples} samples are too few for {world.size} ranks: start fewer ranks"
            )

        # A step: on each rank `accumulate` microbatches of `batch_size` samples.
        self.accumulate = microbatches(options, world.size)
        per_step = options.batch_size * self.accumulate * world.size
        self.order = Order(self.samples, per_step, options.seed)
        self.steps = options.steps or options.epochs * self.order.steps_per_epoch

        # The same seed makes the same weights on every rank; dropout then differs by rank.
        seed_all(options.seed)
        model = build().to(world.device)
        self.lr = scaled_lr(options, world.size)
        self.parallel = Parallel(
            model, optimizer, options, world, units=units, groups=groups, lr=self.lr
        )
        self.model, self.optimizer = self.parallel.model, self.parallel.optimizer
        for group in self.optimizer.param_groups:  # groups may have learning rates of their own
            group.setdefault("initial_lr", group["lr"])
        seed_all(derived(options.seed, "rank", world.rank))

        folder = options.checkpoints or checkpoint_folder() / name
        self.checkpoints = Checkpoints(folder, keep=options.keep, asynchronous=options.asynchronous)
        self.step = 0
        """Steps that are done."""
        self.place = Place()
        """Where in the data the next one begins."""
        self.rollbacks = 0
        self.window: list[tuple[Tensor, int]] = []
        """This rank's loss and items of the steps since the ranks exchanged them."""
        self.sums = [0.0, 0.0, 0.0]
        """Loss times items, items, seconds, of all ranks since the last line."""

    def train(self) -> None:
        """Train to the end, from the newest checkpoint on if it should be.

        Raises:
            LabError: the loss is not finite, or a checkpoint cannot be written.
        """
        if self.options.resume:
            self.restore()
        unit = "step" if self.options.steps else "epoch"
        columns = ("loss", *self.scores)
        reporter = Reporter(self.options, main=self.world.is_main, unit=unit, columns=columns)
        self.reporter = reporter
        with reporter.open:
            reporter.start(self.description(), f"{self.items}/s", self.steps, self.step)
            reporter.event(
                "start", world_size=self.world.size, step=self.step, **asdict(self.options)
            )
            batches = self.batches()
            started = time.perf_counter()
            while self.step < self.steps:
                self.window.append(self.train_step(batches))
                self.step += 1
                self.place = self.order.after(self.place)
                reporter.step(self.step)
                last = self.step == self.steps
                report = last or self.is_due(self.options.report_every)
                save = self.options.save_every and (last or self.is_due(self.options.save_every))
                if report or save or len(self.window) == CHECK_EVERY:
                    bad = self.exchange_losses()
                    self.sums[2] += time.perf_counter() - started
                    if bad is not None:
                        batches = self.go_back(*bad)
                    else:
                        if report:
                            self.report(last)
                        if save:
                            self.save()
                    started = time.perf_counter()
            self.checkpoints.finish()
            reporter.event("end", step=self.step)

    # One step.

    def train_step(self, batches: Iterator[Any]) -> tuple[Tensor, int]:
        """Forward and backward of each microbatch, then the optimiser.

        Returns:
            This rank's loss, a scalar on its device, and its items.
        """
        self.model.train()
        self.set_learning_rate()
        self.optimizer.zero_grad()
        total, items = torch.zeros((), device=self.world.device), 0
        for number in range(self.accumulate):
            batch = moved_to(self.world.device, next(batches))
            with self.parallel.microbatch(last=number == self.accumulate - 1):
                with self.autocast():
                    loss, count = self.loss(self.model, batch)
                (loss / self.accumulate).backward()  # backward adds up, and the mean is wanted
            total += loss.detach() * count
            items += count
        if self.options.clip is not None:
            self.parallel.clip_(self.options.clip)
        self.optimizer.step()
        return total / items, items

    def set_learning_rate(self) -> None:
        """That of the step to come."""
        factor = schedule_factor(self.options, self.step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor

    def autocast(self) -> torch.autocast:
        """bfloat16 needs no loss scaling: it has float32's range."""
        wanted = self.options.precision == "bfloat16"
        return torch.autocast(self.world.device.type, dtype=torch.bfloat16, enabled=wanted)

    def batches(self) -> Iterator[Any]:
        """This rank's microbatches from `place` on, without end."""
        order = RankOrder(
            self.order,
            self.place,
            rank=self.world.rank,
            world_size=self.world.size,
            accumulate=self.accumulate,
        )
        return load(self.data, order, self.options.workers, pin=self.world.device.type == "cuda")

    # Between steps.

    def is_due(self, every: int) -> bool:
        """Whether so many epochs, or steps if the length is in steps, end here."""
        if every == 0:
            return False
        if self.options.steps:
            return self.step % every == 0
        return self.place.sample == 0 and self.place.epoch % every == 0

    def exchange_losses(self) -> tuple[int, int] | None:
        """Add up all ranks' losses of the window. A collective.

        Sums and counts travel, never means: the ranks may have unequal counts.

        Returns:
            Step and rank of the first loss that is not finite, if any.
        """
        losses = torch.stack([loss for loss, _ in self.window]).double().tolist()
        first = self.step - len(losses) + 1
        bad = next((first + n for n, loss in enumerate(losses) if not math.isfinite(loss)), 0)
        items = [count for _, count in self.window]
        loss_sum = sum(loss * count for loss, count in zip(losses, items, strict=True))
        rows = self.world.gather(loss_sum, sum(items), bad or math.inf)
        self.window.clear()
        worst, rank = min((row[2], rank) for rank, row in enumerate(rows))
        if worst < math.inf:
            return int(worst), rank
        self.sums[0] += sum(row[0] for row in rows)
        self.sums[1] += sum(row[1] for row in rows)
        return None

    def report(self, last: bool) -> None:
        """A line of the table, with the scores on the held-out data where they are due."""
        loss_sum, items, seconds = self.sums
        self.sums = [0.0, 0.0, 0.0]
        values = {"loss": loss_sum / items}
        if self.evaluate is not None and (last or self.is_due(self.options.evaluate_every)):
            values |= self.evaluation()
        number = self.step if self.options.steps else self.place.epoch
        speed = items / seconds
        self.reporter.row(number, self.step, values, speed)
        lr = self.optimizer.param_groups[0]["lr"]
        self.reporter.event(
            "report", step=self.step, epoch=self.place.epoch, lr=lr, per_second=speed, **values
        )

    @torch.no_grad()
    def evaluation(self) -> dict[str, float]:
        """Each score's mean over the held-out samples, each counted once. A collective."""
        assert self.held_out is not None
        assert self.evaluate is not None
        self.parallel.align_buffers()
        self.model.eval()
        samples = len(self.held_out)
        mine = list(range(self.world.rank, samples, self.world.size))
        sums = [0.0] * (len(self.scores) + 1)
        # As many forwards on each rank: with FSDP they are collectives. Who has no samples left
        # takes any, and does not count them.
        for first in range(0, -(-samples // self.world.size), self.options.batch_size):
            own = mine[first : first + self.options.batch_size]
            batch = default_collate([self.held_out[index] for index in own or [0]])
            with self.autocast():
                values = self.evaluate(self.model, moved_to(self.world.device, batch))
            if own:
                sums = [s + v for s, v in zip(sums, (*values, len(own)), strict=True)]
        *totals, count = self.world.sum(*sums)
        return {name: total / count for name, total in zip(self.scores, totals, strict=True)}

    def save(self) -> None:
        """A checkpoint of everything that the next step depends on. A collective."""
        self.parallel.align_buffers()
        progress = {"step": self.step, "place": list(self.place), "samples": self.samples}
        self.checkpoints.save(self.step, self.model, self.optimizer, progress)
        self.reporter.event("save", step=self.step)

    def restore(self) -> bool:
        """Go on from the newest checkpoint; False if there is none. A collective."""
        progress = self.checkpoints.load(self.model, self.optimizer)
        if progress is None:
            return False
        self.step, self.place = progress["step"], Place(*progress["place"])
        return True

    def go_back(self, step: int, rank: int) -> Iterator[Any]:
        """The loss of a step was not finite: end, or go on from a checkpoint behind these data."""
        raise LabError(f"the loss is not finite at step {step} on rank {rank}")

    def description(self) -> str:
        """One line on what is trained and how."""
        held_out = f", {len(self.held_out)} held out" if self.held_out is not None else ""
        times = f" x {self.accumulate}" if self.accumulate > 1 else ""
        kind = self.parallel.kind
        how = f"{kind} ({self.options.impl}, {self.world.backend})"
        return (
            f"{self.name}: {self.samples} samples to train on{held_out}, {self.world.size} x batch "
            f"{self.options.batch_size}{times}, {'one process' if kind == 'none' else how}, "
            f"{self.world.device.type}"
        )


def moved_to(device: torch.device, batch: Any) -> Any:
    """A batch's tensors on a device, in the same containers."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {key: moved_to(device, value) for key, value in batch.items()}
    return type(batch)(moved_to(device, value) for value in batch)
