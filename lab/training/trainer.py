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
from typing import Any

import torch
from torch import Tensor, nn

from lab.errors import LabError, UsageError
from lab.training.checkpoint import checkpoint_folder
from lab.training.checkpoints import Checkpoints
from lab.training.measuring import Measuring
from lab.training.options import Options, microbatches
from lab.training.order import Order, RankOrder, Samples, load, load_once
from lab.training.preemption import Stop
from lab.training.progress import Progress, Step, Sums, set_aside, should_resume
from lab.training.reporting import Reporter, describe
from lab.training.schedule import schedule_factor
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
"""How often a training goes back before it is given up."""


class Trainer:
    """Trains one model on one data set. All ranks make one, and call its methods, alike."""

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
            data: to train on, the same on every rank.
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
            items: what `loss` and the speed count.

        Raises:
            UsageError: options that do not fit the data, the ranks or each other.
        """
        self.options, self.world, self.data, self.loss = options, world, data, loss
        self.held_out, self.evaluate, self.scores = held_out, evaluate, scores
        if len(data) < world.size:
            raise UsageError(f"{len(data)} samples are too few for {world.size} ranks: start fewer")

        # A step takes, on each rank, `accumulate` microbatches of `batch_size` samples.
        self.accumulate = microbatches(options, world.size)
        per_step = world.size * self.accumulate * options.batch_size
        self.order = Order(len(data), per_step, options.seed)
        self.progress = Progress(samples=len(data), seed=options.seed)

        # The same seed makes the same weights on every rank; dropout then differs by rank.
        seed_all(options.seed)
        model = build().to(world.device)
        self.measuring = Measuring(options, world, model, loss, data, self.accumulate)
        self.parallel = Parallel(model, optimizer, options, world, units=units, groups=groups)
        self.model, self.optimizer = self.parallel.model, self.parallel.optimizer
        self.lrs = [group["lr"] for group in self.optimizer.param_groups]  # after the warm-up
        seed_all(derived(options.seed, "rank", world.rank))

        folder = options.checkpoints or checkpoint_folder() / name
        self.checkpoints = Checkpoints(folder, keep=options.keep, asynchronous=options.asynchronous)
        self.reporter = Reporter(options, world, ("loss", *scores), f"{items}/s")
        self.window: list[Step] = []  # since the ranks exchanged losses
        self.rollbacks, self.total = 0, Sums()  # of all lines of the table
        held = f", {len(held_out)} held out" if held_out is not None else ""
        self.what = f"{name}: {len(data)} samples to train on{held}"
        self.stop = Stop(most=CHECK_EVERY, heed_warnings=options.save_every > 0)

    def train(self) -> None:
        """Train to the end; from the newest checkpoint on, if there is one and it is wanted.

        Raises:
            LabError: the loss is not finite, or a checkpoint cannot be written.
        """
        options, progress, reporter = self.options, self.progress, self.reporter
        if should_resume(options, self.world):
            self.restore()
        elif options.save_every and self.world.is_main:
            set_aside(self.checkpoints.folder)
        self.steps = self.count_steps()

        trace = self.measuring.trace(self.steps - progress.step)
        with self.stop, self.checkpoints, reporter, trace:
            how = describe(options, self.world, self.parallel.kind, self.accumulate)
            reporter.start(f"{self.what}, {how}", progress.step, self.steps)
            batches = self.batches()
            self.started = time.perf_counter()
            while progress.step < self.steps and not self.stop.agreed:
                loss, items = self.train_step(batches)
                progress.step += 1
                progress.place = self.order.after(progress.place)
                self.window.append(Step(loss, items, progress.place))
                self.measuring.step()
                reporter.step(progress.step)

                last = progress.step == self.steps
                report = last or self.is_due(options.report_every)
                save = options.save_every > 0 and (last or self.is_due(options.save_every))
                if not (report or save or len(self.window) >= self.stop.look_after):
                    continue
                if (bad := self.exchange_losses()) is not None:
                    batches, report, save = self.go_back(*bad), False, False
                if report:
                    self.report(last=last)
                if save or (self.stop.agreed and options.save_every):
                    self.save()
                self.started = time.perf_counter()
            self.checkpoints.finish()
            if progress.step < self.steps and self.world.is_main:
                self.stop.begin_again()
            reporter.end(progress.step, self.total, self.measuring.results(self.total))

    # One step.

    def train_step(self, batches: Iterator[Any]) -> tuple[Tensor, int]:
        """Forward and backward of each microbatch, then the optimiser.

        Returns:
            This rank's mean loss, a scalar on its device, and its items.
        """
        self.model.train()
        factor = schedule_factor(self.options, self.progress.step, self.steps)
        for group, lr in zip(self.optimizer.param_groups, self.lrs, strict=True):
            group["lr"] = lr * factor
        self.optimizer.zero_grad()

        loss_sum, items = torch.zeros((), device=self.world.device), 0
        for number in range(self.accumulate):
            batch = next(batches)
            # Gradients add up on each rank, and only the last backward sends them.
            with self.parallel.microbatch(last=number == self.accumulate - 1):
                with self.autocast():
                    loss, count = self.loss(self.model, batch)
                (loss / self.accumulate).backward()  # so the sum over microbatches is the mean
            loss_sum += loss.detach() * count
            items += count

        if self.options.clip is not None:
            self.parallel.clip_(self.options.clip)
        self.optimizer.step()
        return loss_sum / items, items

    def autocast(self) -> torch.autocast:
        """bfloat16 needs no scaling of the loss: it has float32's range."""
        wanted = self.options.precision == "bfloat16"
        return torch.autocast(self.world.device.type, dtype=torch.bfloat16, enabled=wanted)

    def batches(self) -> Iterator[Any]:
        """This rank's microbatches from where the training is, without end."""
        order = RankOrder(self.order, self.progress.place, self.world, self.accumulate)
        return load(self.data, order, self.options.workers, self.world.device)

    # Between steps.

    def count_steps(self) -> int:
        """After how many steps the training ends."""
        rest = self.order.steps_until(self.progress.place, self.options.epochs)
        return self.options.steps or self.progress.step + rest

    def is_due(self, every: int) -> bool:
        """Whether the number of steps, or of epochs, is a multiple now."""
        if self.options.steps:
            return every > 0 and self.progress.step % every == 0
        return every > 0 and self.progress.sample == 0 and self.progress.epoch % every == 0

    def exchange_losses(self) -> tuple[int, int] | None:
        """Add up all ranks' losses since the last time, and agree whether to stop. A collective.

        Sums and counts travel, never means: the ranks may have unequal counts.

        Returns:
            Step and rank of the first loss that is not finite, if any.
        """
        losses = torch.stack([step.loss for step in self.window]).double().tolist()
        seconds = time.perf_counter() - self.started  # a GPU has only now done what it was told
        loss_sum = sum(loss * s.items for loss, s in zip(losses, self.window, strict=True))
        first = self.progress.step - len(losses) + 1
        bad = (first + n for n, loss in enumerate(losses) if not math.isfinite(loss))
        items = sum(step.items for step in self.window)
        mine = (loss_sum, items, next(bad, math.inf), self.stop.requested, seconds)
        rows = self.world.gather(*mine)
        worst, rank = min((row[2], rank) for rank, row in enumerate(rows))
        if worst < math.inf:
            return int(worst), rank
        sums, counts, _, stops, times = zip(*rows, strict=True)
        self.progress.row += Sums(sum(sums), sum(counts), len(losses), max(times))
        self.stop.agree(any(stops), len(losses), max(times))
        self.window.clear()
        return None

    def report(self, *, last: bool) -> None:
        """A line of the table, with the scores on the held-out data where they are due."""
        row = self.progress.row
        values = {"loss": row.loss / row.items}
        if last or self.is_due(self.options.evaluate_every):
            values |= self.evaluation()
        self.reporter.row(self.progress, values, row, self.optimizer.param_groups[0]["lr"])
        self.total += row
        self.progress.row = Sums()

    @torch.no_grad()
    def evaluation(self) -> dict[str, float]:
        """Each score's mean over the held-out samples, if there are any. A collective."""
        if self.evaluate is None or self.held_out is None:
            return {}
        self.parallel.align_buffers()
        self.model.eval()
        sums, counted = [0.0] * len(self.scores), 0
        for batch, count in load_once(self.held_out, self.options.batch_size, self.world):
            with self.autocast():
                values = self.evaluate(self.model, batch)
            if count:
                sums = [total + value for total, value in zip(sums, values, strict=True)]
                counted += count
        *totals, samples = self.world.sum(*sums, counted)
        return {name: total / samples for name, total in zip(self.scores, totals, strict=True)}

    def save(self) -> None:
        """A checkpoint of everything on which the next step depends. A collective."""
        self.parallel.align_buffers()
        self.checkpoints.save(self.progress.step, self.model, self.optimizer, self.progress.plain())
        self.reporter.event("save", step=self.progress.step)

    def restore(self) -> bool:
        """Go on from the newest checkpoint; False if there is none. A collective."""
        saved = self.checkpoints.load(self.model, self.optimizer)
        if saved is not None:
            self.progress.go_on_from(saved)
        return saved is not None

    def go_back(self, step: int, rank: int) -> Iterator[Any]:
        """A loss was not finite: end, or go on from a checkpoint with the data behind that step.

        The same data again would end the same way. As with PaLM: Chowdhery et al., 2022,
        https://arxiv.org/abs/2204.02311, section 5.1.

        Raises:
            LabError: to go back was not wanted, or does not help.
        """
        behind = self.window[step - self.progress.step - 1].behind
        self.window.clear()
        self.reporter.event("nan", step=step, rank=rank)
        problem = f"the loss at step {step} on rank {rank} is not finite"
        cure = "lower --lr, or limit the gradient with --clip"
        if self.options.on_nan == "stop":
            raise LabError(f"{problem}: {cure}, or skip such data with --on-nan rollback")
        if self.rollbacks == ROLLBACKS:
            raise LabError(f"{problem}, after {ROLLBACKS} times of going back: {cure}")
        self.checkpoints.finish()
        if not self.restore():
            raise LabError(f"{problem}, and there is no checkpoint to go back to: {cure}")
        self.rollbacks += 1
        self.reporter.say(f"{problem}: back to step {self.progress.step}, without these data")
        self.progress.place = behind
        self.steps = self.count_steps()
        return self.batches()
