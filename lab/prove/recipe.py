"""What a proof trains, with which options, and how equal that must come out. No torch here."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple, get_args

from lab.training.methods import Impl, Parallel

AllReduce = Literal["flat", "ordered", "hierarchical"]
Mean = Literal["sum_then_divide", "avg", "divide_then_sum"]
CommHook = Literal["none", "fp16", "bf16"]
Precision = Literal["float32", "bfloat16"]
OptimizerName = Literal["adam", "sgd"]

TOLERANCE = 1e-6
"""Largest difference in float32 that counts as equal, relative to the largest value."""
ROUNDED = {"fp16": 1e-2, "bf16": 1e-1, "bfloat16": 1e-1}
"""The same where gradients travel, or forward and backward run, in fewer bits.

Half precision rounds a gradient by 5e-4 of itself, bfloat16 by 4e-3. Adam divides a gradient by its
own size, so where it nearly vanishes a rounding error moves a weight as far as a gradient would.
"""


class Demand(NamedTuple):
    """How equal is equal."""

    bitwise: bool
    tolerance: float
    """Relative; 0 where bitwise."""
    reason: str

    @property
    def words(self) -> str:
        """For people."""
        return "every bit" if self.bitwise else f"{self.tolerance:.0e} relative"


@dataclass(frozen=True)
class Recipe:
    """What is trained: the Wine classifier, for some steps, over as many epochs as they need."""

    steps: int = 20
    """Optimiser steps."""
    batch_size: int = 32
    """Samples per microbatch and rank. An epoch's last is smaller; it is so on all ranks."""
    accumulate: int = 1
    """Microbatches per step and rank: all but the last inside `no_sync`."""
    optimizer: OptimizerName = "adam"
    """SGD has momentum, so that it has states."""
    learning_rate: float = 1e-3
    seed: int = 42
    """Of the weights and of the shuffling."""
    parallel: Parallel = "ddp"
    """How the ranks share the work. zero1, zero2: ddp, with the optimiser's states in N parts."""
    impl: Impl = "ours"
    """lab.parallel's, PyTorch's, or the one-page MinimalDDP."""
    all_reduce: AllReduce = "flat"
    """ordered: sums in rank order, bitwise equal to one process at any N. hierarchical: inside
    each node first."""
    mean: Mean = "sum_then_divide"
    comm_hook: CommHook = "none"
    """Compresses gradients on their way."""
    bucket_cap_mb: float = 25.0
    """MiB of gradients sent together. 0: each by itself."""
    find_unused_parameters: bool = False
    static_graph: bool = False
    reshard_after_forward: bool = True
    """Free FSDP's units between forward and backward."""
    prefetch: bool = True
    """Gather FSDP's next unit while one computes."""
    precision: Precision = "float32"
    """Of FSDP's forward and backward."""

    def __post_init__(self) -> None:
        """Never run something else than was asked for.

        Raises:
            ValueError: an option that this implementation does not have.
        """
        methods = OPTIONS.get(self.impl, {})
        if self.parallel not in methods:
            raise ValueError(f"impl {self.impl} has no {self.parallel}, only {', '.join(methods)}")
        allowed = methods[self.parallel]
        for name in sorted(METHOD_OPTIONS - allowed):
            if getattr(self, name) != _defaults[name]:
                raise ValueError(
                    f"{self.parallel} of impl {self.impl} has no {name.replace('_', '-')}, "
                    f"only {', '.join(sorted(allowed)).replace('_', '-') or 'its defaults'}"
                )
        if self.impl == "torch" and self.comm_hook == "bf16":
            raise ValueError("torch has its bf16 hook for nccl alone; impl ours has one for all")
        if self.comm_hook != "none" and self.all_reduce != "flat":
            raise ValueError("comm-hook and all-reduce exclude each other: both are hooks")

    def check_world(self, size: int) -> None:
        """Before the start.

        Raises:
            ValueError: N ranks cannot do this together.
        """
        if self.parallel == "none" and size > 1:
            raise ValueError(
                f"parallel none on {size} ranks would train {size} models that know nothing of "
                "each other; take one rank"
            )

    def demand(self, size: int) -> Demand:
        """What is to be held by `size` ranks against the one process."""
        for rounded in (self.comm_hook, self.precision):
            if rounded in ROUNDED:
                return Demand(False, ROUNDED[rounded], f"rounded to {rounded}")
        if size <= 2:
            return Demand(True, 0.0, "a sum of two has one order" if size == 2 else "one rank")
        ordered = self.all_reduce == "ordered" or self.parallel in ("fsdp", "zero2")
        if self.impl == "ours" and ordered and self.mean != "divide_then_sum":
            return Demand(True, 0.0, "sums in rank order")
        return Demand(False, TOLERANCE, "added in another order")

    @property
    def training(self) -> "Recipe":
        """What one process trains, whatever the method."""
        others = {name: value for name, value in _defaults.items() if name in METHOD_OPTIONS}
        method = {**others, "parallel": "none", "impl": "ours", "accumulate": self.accumulate}
        return replace(self, **method)

    @property
    def title(self) -> str:
        """What distinguishes it from others, in short."""
        words: list[str] = [self.parallel] + [self.impl] * (self.impl != "ours")
        for name, value in self._chosen():
            if name in METHOD_OPTIONS:
                told = f"{name}={value}"
                if isinstance(value, bool):
                    told = name if value else f"no {name}"
                words.append(told)
        return " ".join(words)

    def arguments(self) -> list[str]:
        """The worker's command line."""
        return [
            word
            for name, value in self._chosen()
            for word in (
                [f"--{'' if value else 'no-'}{name.replace('_', '-')}"]
                if isinstance(value, bool)
                else [f"--{name.replace('_', '-')}", str(value)]
            )
        ]

    def _chosen(self) -> Iterator[tuple[str, Any]]:
        values = ((name, getattr(self, name)) for name in _defaults)
        return ((name, value) for name, value in values if value != _defaults[name])


_defaults: dict[str, Any] = {field.name: field.default for field in fields(Recipe)}

_DDP = frozenset({"accumulate", "comm_hook", "bucket_cap_mb"}) | {
    "find_unused_parameters",
    "static_graph",
}
_FSDP = frozenset({"accumulate", "reshard_after_forward", "precision"})
OPTIONS: dict[str, dict[str, frozenset[str]]] = {
    "ours": {
        "none": frozenset({"accumulate"}),
        "ddp": _DDP | {"all_reduce", "mean"},
        "zero1": _DDP | {"all_reduce", "mean"},
        "zero2": (_DDP | {"mean"}) - {"comm_hook"},
        "fsdp": _FSDP | {"prefetch"},
    },
    "torch": {"ddp": _DDP, "zero1": _DDP, "fsdp": _FSDP},
    "minimal": {"ddp": frozenset({"accumulate"})},
}
"""Who has what: by implementation and method."""
METHOD_OPTIONS = frozenset().union(
    *(options for methods in OPTIONS.values() for options in methods.values())
)
"""Options of the methods; the others are the training's."""


def choices(name: str) -> Sequence[str]:
    """The words that an option of Recipe takes; none where it takes anything."""
    annotation = next(field.type for field in fields(Recipe) if field.name == name)
    return get_args(annotation)
