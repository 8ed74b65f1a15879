"""How to train, whatever is trained: the options of the Trainer, and the same as arguments.

A job adds its own by inheriting:

    @dataclass(frozen=True, kw_only=True)
    class GptOptions(Options):
        layers: int = 4

    parser = training_arguments("lab.training.gpt", "Train a small GPT.", GptOptions())
    parser.add_argument("--layers", type=positive_int)
    options = GptOptions(**vars(parser.parse_args(argv)))
"""

import argparse
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from lab.errors import UsageError
from lab.training.arguments import ArgumentParser, count, positive_float, positive_int
from lab.training.methods import IMPLS, PARALLEL, Impl, Parallel
from lab.training.world import BACKENDS

SCHEDULES = ("constant", "cosine", "linear")
LR_SCALING = ("none", "linear", "sqrt")


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the Trainer can be told. Numbers of steps are of optimiser steps."""

    epochs: int = 20
    """Times through the training data."""
    steps: int | None = None
    """Instead of `epochs`. The `..._every` count in the same: epochs, or steps if this is set."""
    batch_size: int = 32
    """Samples of a microbatch, on each rank."""
    accumulate: int = 1
    """Microbatches of a step."""
    global_batch: int | None = None
    """Samples of a step on all ranks together; `accumulate` follows from it and the world size."""

    lr: float = 1e-3
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    """What becomes of the learning rate after the warm-up, until the last step."""
    warmup: int = 0
    """Steps in which it rises from nearly 0 to `lr`."""
    scale_lr: Literal["none", "linear", "sqrt"] = "none"
    """Multiply it by the world size, or by its square root."""
    clip: float | None = None
    """Largest norm of the whole gradient."""

    parallel: Parallel | None = None
    """None: ddp where a launcher started ranks."""
    impl: Impl = "ours"
    """Whose: lab.parallel's, PyTorch's, or the one-page MinimalDDP (ddp only)."""
    backend: str = "auto"
    precision: Literal["float32", "bfloat16"] = "float32"
    """bfloat16: compute in it where autocast says so; parameters and gradients stay float32."""
    activation_checkpointing: bool = False
    """Compute each unit's activations again in backward instead of keeping them."""
    sync_batchnorm: bool = False
    """Normalise by the statistics of all ranks' batches."""

    seed: int = 42
    """Of the weights, the order of the data, dropout and augmentation."""
    workers: int = 0
    """Processes that load data, on each rank."""

    report_every: int = 1
    """Lines of the table; 0: only the last."""
    evaluate_every: int = 1
    """At most as often as the table has lines; 0: only at the end."""
    SAVE_EVERY: ClassVar[int] = 10
    save_every: int | None = None
    """Checkpoints; 0: none at all. None: at `SAVE_EVERY`, where nodes share a folder."""
    keep: int = 3
    """How many of the newest checkpoints stay."""
    asynchronous: bool = False
    """Write checkpoints while training goes on."""
    checkpoints: Path | None = None
    """Their folder; default `checkpoints/NAME` in the run's directory, or here."""
    resume: bool | Literal["auto"] = False
    """Go on from the newest checkpoint in that folder. In the default folder of a run that has none
    it is that of the latest other run beside it. "auto": where there is none at all, begin."""
    on_nan: Literal["stop", "rollback"] = "stop"
    """When loss, gradient or weights are not finite: stop, or go back to the last checkpoint and
    leave out the data of that step."""

    measure: bool = False
    """Measure the share of communication and the utilisation of the processor."""
    profile: Path | None = None
    """A folder for each rank's trace of a few steps, as torch.profiler writes it."""
    events: Path | None = None
    """A file of JSON lines; default `training.jsonl` in the run's directory, if there is one."""
    tensorboard: Path | None = None
    """A folder for TensorBoard."""

    def __post_init__(self) -> None:
        """Check what would fail far from here.

        Raises:
            UsageError: a number is too small, or there would be nothing to go back to.
        """
        if self.on_nan == "rollback" and self.save_every == 0:
            raise UsageError("--on-nan rollback needs checkpoints: leave --save-every 0 out")
        for name in ("epochs", "steps", "batch_size", "accumulate", "global_batch", "keep"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"{name} is {value}, and must be at least 1")
        for name in ("lr", "clip"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"{name} is {value}, and must be above 0")

    @property
    def saves_every(self) -> int:
        """`save_every` with its default: by epochs it is 1 where the job's own counts steps."""
        if self.save_every is not None:
            return self.save_every
        return 1 if self.steps is None and type(self).steps is not None else self.SAVE_EVERY

    @property
    def needs_checkpoints(self) -> bool:
        """Whether someone counts on them, and has said so."""
        asked = self.save_every or self.checkpoints or self.resume
        return bool(asked or self.on_nan == "rollback")


def training_arguments(program: str, description: str, defaults: Options) -> ArgumentParser:
    """A parser with an argument for each of the options; it gives only what was said.

    Args:
        program: as the user calls it.
        description: of the job.
        defaults: for the help.
    """
    parser = ArgumentParser(program, description=description, argument_default=argparse.SUPPRESS)

    def add(group: argparse._ActionsContainer, name: str, said: str, **kind: object) -> None:
        default = getattr(defaults, name.lstrip("-").replace("-", "_"))
        shown = "" if default is None or default is False else f" ({default})"
        group.add_argument(name, help=said + shown, **kind)  # type: ignore[arg-type]  # argparse's own keywords

    group = parser.add_argument_group("length and batches")
    length, either = partial(add, group), partial(add, group.add_mutually_exclusive_group())
    epochs = {"type": positive_int, "action": _Epochs, "const": defaults.steps is not None}
    either("--epochs", "times through the training data", **epochs)
    either("--steps", "instead of --epochs; then --..-every count steps", type=positive_int)
    length("--batch-size", "samples of a microbatch on each rank", type=positive_int)
    length("--accumulate", "microbatches of a step", type=positive_int)
    length("--global-batch", "samples of a step, whatever the world size", type=positive_int)

    learning = partial(add, parser.add_argument_group("learning"))
    learning("--lr", "the learning rate", type=positive_float)
    learning("--schedule", "of the learning rate", choices=SCHEDULES)
    learning("--warmup", "steps in which it rises", type=count)
    learning("--scale-lr", "with the world size", choices=LR_SCALING)
    learning("--clip", "largest norm of the gradient", type=positive_float)
    learning("--seed", "of weights, order, dropout and augmentation", type=count)
    learning(
        "--on-nan", "when loss, gradient or weights are not finite", choices=("stop", "rollback")
    )

    ranks = partial(add, parser.add_argument_group("ranks"))
    ranks("--parallel", "(ddp where a launcher started ranks)", choices=PARALLEL)
    ranks("--impl", "lab.parallel's, PyTorch's, or the one-page MinimalDDP", choices=IMPLS)
    ranks("--backend", "auto: nccl with a GPU for each rank, else gloo", choices=BACKENDS)
    ranks("--precision", "of computing", choices=("float32", "bfloat16"))
    ranks("--activation-checkpointing", "compute activations twice", action="store_true")
    ranks("--sync-batchnorm", "statistics of all ranks' batches", action="store_true")
    ranks("--workers", "processes that load data, on each rank", type=count)

    output = partial(add, parser.add_argument_group("output"))
    output("--report-every", "epochs or steps; 0: only at the end", type=count)
    output("--evaluate-every", "epochs or steps; 0: only at the end", type=count)
    saves = f"epochs or steps between checkpoints; 0: none at all ({defaults.saves_every})"
    output("--save-every", saves, type=count)
    output("--keep", "how many checkpoints stay", type=positive_int)
    output("--asynchronous", "save while training goes on", action="store_true")
    output("--checkpoints", "their folder", type=Path)
    output(
        "--resume",
        "go on from the newest checkpoint; auto: if there is any",
        nargs="?",
        const=True,
        choices=("auto",),
        metavar="auto",
    )
    output("--measure", "share of communication, utilisation", action="store_true")
    output("--profile", "folder for traces of a few steps", type=Path)
    output("--events", "file for JSON lines", type=Path)
    output("--tensorboard", "folder for TensorBoard", type=Path)
    return parser


class _Epochs(argparse.Action):
    """The length in epochs; where the defaults count steps, the lines as well."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        namespace.epochs, namespace.steps = values, None
        if self.const:
            for name in ("report_every", "evaluate_every"):  # and see `saves_every`
                if name not in namespace:  # what is said counts, before or behind
                    setattr(namespace, name, 1)


def microbatches(options: Options, world_size: int) -> int:
    """How many a rank has in each step.

    Raises:
        UsageError: the global batch does not divide among the ranks.
    """
    if options.global_batch is None:
        return options.accumulate
    once = options.batch_size * world_size
    if options.accumulate != 1:
        raise UsageError("--accumulate follows from --global-batch: give one of the two")
    if options.global_batch % once:
        below = options.global_batch // once * once
        near = " or ".join(str(size) for size in (below, below + once) if size)
        raise UsageError(
            f"--global-batch {options.global_batch} does not divide among {world_size} ranks in "
            f"batches of {options.batch_size}: make it {near}, or choose another --batch-size"
        )
    return options.global_batch // once
