"""The training loop, from the first batch to the last checkpoint, on any number of ranks.

    Trainer(Net, dataset, Options(epochs=3), world, loss=loss).train()

The file reads from top to bottom: what is set up, the loop, one step, what happens between steps.
Beside it are only what one can leave for later: `order.py` says which samples a step takes,
`wrapping.py` what DDP, FSDP and ZeRO make of the model, `reporting.py` prints.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from lab.errors import LabError, UsageError
from lab.training.checkpoints import Checkpoints
from lab.training.checkpoints.files import checkpoint_folder
from lab.training.measuring import Measuring
from lab.training.options import Options, microbatches
from lab.training.order import Order, RankOrder, Samples, load, load_once
from lab.training.preemption import Stop
from lab.training.progress import Fault, Step, Sums, TrainingProgress
from lab.training.reporting import Reporter, describe
from lab.training.resume import claim, source, started_before
from lab.training.schedule import schedule_factor
from lab.training.seeding import derived, seed_all
from lab.training.world import World
from lab.training.wrapping import OptimizerMaker, Units, Wrapped, children_with_parameters

Loss = Callable[[nn.Module, Any], Tensor]
"""Of the model and a batch: the sum over the batch's items, a scalar."""
Count = Callable[[Any], int | Tensor]
"""Of a batch: how many of its items count, such as tokens that are no padding."""
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
        count: int | Count = 1,
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
            count: items of each sample, or where samples differ, see `Count`.
            optimizer: a class or a partial of it; the learning rate is the options'.
            groups: the optimiser's parameters or groups, of the wrapped model.
            units: what FSDP gathers at once, and activation checkpointing computes twice.
            held_out: to evaluate on.
            evaluate: see `Evaluate`. Called in evaluation mode without gradients.
            scores: what it gives, by name.
            name: of the checkpoints' folder and the first line.
            items: what `count` and the speed count.

        Raises:
            UsageError: options that do not fit the data, the ranks or each other.
        """
        self.options, self.world, self.data = options, world, data
        self.loss, self.count = loss, count
        self.held_out, self.evaluate, self.scores = held_out, evaluate, scores
        if len(data) < world.size:
            raise UsageError(f"{len(data)} samples are too few for {world.size} ranks: start fewer")

        # A step takes, on each rank, `accumulate` microbatches of `batch_size` samples.
        self.accumulate = microbatches(options, world.size)
        per_step = world.size * self.accumulate * options.batch_size
        self.order = Order(len(data), per_step, options.seed)
        self.progress = TrainingProgress(samples=len(data), seed=options.seed)

        # The same seed makes the same weights on every rank; dropout then differs by rank.
        seed_all(options.seed)
        model = build().to(world.device)
        self.measuring = Measuring(options, world, model, loss, data, self.accumulate)
        self.wrapped = Wrapped(model, optimizer, options, world, units=units, groups=groups)
        self.model, self.optimizer = self.wrapped.model, self.wrapped.optimizer
        self.lrs = [group["lr"] for group in self.optimizer.param_groups]  # after the warm-up
        seed_all(derived(options.seed, "rank", world.rank))

        folder = options.checkpoints or checkpoint_folder() / name
        self.checkpoints = Checkpoints(folder, keep=options.keep, asynchronous=options.asynchronous)
        self.reporter = Reporter(options, world, ("loss", *scores), f"{items}/s")
        self.window: list[Step] = []  # since the ranks exchanged losses
        self.rollbacks, self.total = 0, Sums()  # of all lines of the table
        self.what = f"{name}: {len(data)} samples to train on"

    def train(self) -> None:
        """Train to the end; from the newest checkpoint on, if there is one and it is wanted.

        Raises:
            UsageError: there is no checkpoint to go on from, and one was asked for.
            LabError: something is not finite, or a checkpoint cannot be written.
        """
        again = started_before(self.world)
        # From now on no other training saves in the folder; nor this one, where nodes share none.
        options = self.options = claim(self.checkpoints, self.options, self.world, again)
        progress, reporter = self.progress, self.reporter
        # A scheduler warns one rank or all, at any time: they stop at the same step.
        self.stop = Stop(most=CHECK_EVERY, heed_warnings=options.saves_every > 0)
        with self.stop, self.checkpoints, reporter:
            # Our own checkpoints, or those of the run before; None: begin at the beginning.
            self.source = source(self.checkpoints, options, self.world, again)
            if self.source is not None:
                self.restore()
            self.steps = self.count_steps()
            with self.measuring.trace(self.steps - progress.step):
                how = options, self.world, self.wrapped.kind, self.accumulate
                reporter.start(describe(self.what, self.held_out, *how), progress.step, self.steps)
                batches = self.batches()
                self.started = time.perf_counter()
                while progress.step < self.steps and not self.stop.agreed:
                    self.window.append(Step(self.train_step(batches), progress.position))
                    progress.step += 1
                    progress.position = self.order.after(progress.position)
                    self.measuring.step()
                    reporter.step(progress.step)

                    # To read a loss is to wait for the GPU, to add the ranks' up is to wait for
                    # them: that is only done where someone wants to know, and before each save.
                    last = progress.step == self.steps
                    report = last or self.is_due(options.report_every)
                    save = options.saves_every > 0 and (last or self.is_due(options.saves_every))
                    if not (report or save or len(self.window) >= self.stop.look_after):
                        continue
                    if (fault := self.exchange()) is not None:
                        batches, save = self.go_back(fault), False
                        report = last = progress.step == self.steps  # all else was left out
                    if report:
                        self.report(last=last)
                    if save or (self.stop.agreed and options.saves_every):
                        self.save()
                    self.started = time.perf_counter()
                self.checkpoints.finish()
                if progress.step < self.steps and self.world.is_main:
                    self.stop.begin_again()
                reporter.end(progress.step, self.total, self.measuring.results(self.total))

    def train_step(self, batches: Iterator[Any]) -> Tensor:
        """Forward and backward of each microbatch, then the optimiser.

        Returns:
            [4] float64, not waited for: this rank's loss, summed over its items; how many they are;
            two numbers that are not finite if its own gradient or its new weights are not.
        """
        self.model.train()
        factor = schedule_factor(self.options, self.progress.step, self.steps)
        for group, lr in zip(self.optimizer.param_groups, self.lrs, strict=True):
            group["lr"] = lr * factor
        self.optimizer.zero_grad()

        # The gradient is that of the mean over the items of all ranks and microbatches: a mean of
        # means would be another, where their counts differ. To average the ranks' divides by N.
        own, device = list(islice(batches, self.accumulate)), self.world.device
        if callable(self.count):
            items = torch.as_tensor(sum(map(self.count, own)), device=device)
            total = self.world.add_up(items)
        else:  # all ranks have as many samples
            items = torch.tensor(self.count * self.options.batch_size * self.accumulate)
            total = items * self.world.size
        share = self.world.size / total.double().clamp(min=1)
        loss_sum = torch.zeros((), device=device)
        for number, batch in enumerate(own, start=1):
            # Gradients add up on each rank, and only the last backward sends them.
            with self.wrapped.microbatch(last=number == self.accumulate):
                with self.wrapped.autocast():
                    loss = self.loss(self.model, batch)
                (loss * share).backward()
            loss_sum += loss.detach()

        if self.options.clip is not None:
            self.wrapped.clip_(self.options.clip)
        self.optimizer.step()
        norms = self.wrapped.own_gradient.take(), self.wrapped.largest_weight()
        return torch.stack([v.to(device, torch.float64) for v in (loss_sum, items, *norms)])

    def batches(self) -> Iterator[Any]:
        """This rank's microbatches from where the training is, without end."""
        order = RankOrder(self.order, self.progress.position, self.world, self.accumulate)
        return load(self.data, order, self.options.workers, self.world.device)

    def count_steps(self) -> int:
        """After how many steps the training ends."""
        rest = self.order.steps_until(self.progress.position, self.options.epochs)
        return self.options.steps or self.progress.step + rest

    def is_due(self, every: int) -> bool:
        """Whether the number of steps, or of epochs, is a multiple now."""
        if self.options.steps:
            return every > 0 and self.progress.step % every == 0
        return every > 0 and self.progress.sample == 0 and self.progress.epoch % every == 0

    def exchange(self) -> Fault | None:
        """Add up all ranks' losses since the last time; agree whether to stop. A collective.

        Returns:
            What was not finite, if anything; then nothing has been added up.
        """
        rows = torch.stack([step.values for step in self.window]).tolist()
        seconds = time.perf_counter() - self.started  # a GPU has only now done what it was told
        losses, items, gradients, weights = zip(*rows, strict=True)
        found = Fault.look(self.progress.step, losses, gradients, weights)
        mine = sum(losses), sum(items), self.stop.requested, seconds
        everybodys = self.world.gather(*found, *mine)
        if (fault := Fault.first([row[:3] for row in everybodys])) is not None:
            return fault
        *_, losses, items, stops, times = zip(*everybodys, strict=True)
        self.progress.row += Sums(sum(losses), sum(items), len(rows), max(times))
        self.stop.agree(any(stops), len(rows), max(times))
        self.window.clear()
        return None

    def report(self, *, last: bool) -> None:
        """A line of the table, with the scores on the held-out data where they are due."""
        row = self.progress.row
        values = {"loss": row.loss / row.items} if row.items else {}
        if last or self.is_due(self.options.evaluate_every):
            values |= self.evaluation()
        self.reporter.row(self.progress, values, row, self.optimizer.param_groups[0]["lr"])
        self.total += row
        self.progress.row = Sums()

    @torch.no_grad()
    def evaluation(self) -> dict[str, float]:
        """Each score's mean over the held-out samples, if there are any. A collective."""
        if self.evaluate is None or not self.held_out:  # none, or of no sample
            return {}
        self.wrapped.align_buffers()
        self.model.eval()
        sums, counted = [0.0] * len(self.scores), 0
        for batch, count in load_once(self.held_out, self.options.batch_size, self.world):
            with self.wrapped.autocast():
                values = self.evaluate(self.model, batch)
            if count:
                sums = [total + value for total, value in zip(sums, values, strict=True)]
                counted += count
        *totals, samples = self.world.sum(*sums, counted)
        return {name: total / samples for name, total in zip(self.scores, totals, strict=True)}

    def save(self) -> None:
        """A checkpoint of everything on which the next step depends. A collective."""
        self.wrapped.align_buffers()
        self.checkpoints.save(self.progress.step, self.model, self.optimizer, self.progress.plain())
        self.reporter.event("save", step=self.progress.step)

    def restore(self) -> bool:
        """Go on from the newest checkpoint; False if there is none. A collective."""
        for checkpoints in filter(None, (self.checkpoints, self.source)):  # this run's come first
            if (saved := checkpoints.load(self.model, self.optimizer)) is not None:
                self.progress.go_on_from(saved)
                self.order.left_out = self.progress.left_out
                self.reporter.say(f"goes on from {checkpoints.loaded}, step {self.progress.step}")
                return True
        return False

    def go_back(self, fault: Fault) -> Iterator[Any]:
        """Something was not finite: end, or go on from a checkpoint without the data of that step.

        With the same data it would end the same way. Chowdhery et al., "PaLM", 2022,
        https://arxiv.org/abs/2204.02311, section 5.1, leave out some more.

        Raises:
            LabError: to go back was not wanted, or does not help.
        """
        position = self.window[fault.step - self.progress.step - 1].position
        left_out = (*self.order.left_out, self.order.begin(position))
        self.window.clear()
        self.reporter.event("nan", step=fault.step, rank=fault.rank, what=fault.what)
        cure = "lower --lr, or limit the gradient with --clip"
        if self.options.on_nan == "stop":
            raise LabError(f"{fault}: {cure}, or skip such data with --on-nan rollback")
        if self.rollbacks == ROLLBACKS:
            raise LabError(f"{fault}, after {ROLLBACKS} times of going back: {cure}")
        self.checkpoints.finish()
        if not self.restore():
            raise LabError(f"{fault}, and there is no checkpoint to go back to: {cure}")
        self.rollbacks += 1
        back = f"back to step {self.progress.step}, then without the data of step {fault.step}"
        self.reporter.say(f"{fault}: {back}")
        self.order.left_out = self.progress.left_out = left_out
        self.steps = self.count_steps()
        return self.batches()
