"""What a proof found, as data and in words. No torch here: the controller reads reports too."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

from lab.prove.recipe import Demand, Recipe
from lab.prove.resources import Memory, Wire

SCHEMA = 2
"""Of the JSON, `schema` in it. Not finite numbers are null."""
BATCH_TOLERANCE = 1e-3
"""Largest |difference| that counts as equal for `manual_all_reduce_matches_single_process`."""


@dataclass(frozen=True)
class Place:
    """Where it was proven."""

    topology: str
    nodes: int
    world_size: int
    torch: str
    """Version."""
    backend: str


@dataclass(frozen=True)
class StepRow:
    """One optimiser step, in one process and on the ranks. Differences: maxima over all ranks."""

    step: int
    epoch: int
    one_process_loss: float
    ranks_loss: float
    """Mean over the ranks."""
    one_process_parameter_sum: float
    """Checksums: the sum in float64 tells how far apart, the hash whether bitwise equal."""
    ranks_parameter_sum: float
    """Rank 0's."""
    one_process_sha256: str
    ranks_sha256: str
    """Rank 0's."""
    gradient_difference: float
    """Max |difference|, after the all-reduce."""
    parameter_difference: float
    """Max |difference|, after the step."""
    optimizer_difference: float
    """Max |difference| of the optimiser's states, after the step."""
    relative_difference: float
    """The worst of loss, gradients, parameters and states, each as part of its largest value."""
    ranks_equal: bool
    """Whether the parameters are bitwise the same on every rank."""

    @property
    def loss_difference(self) -> float:
        """|difference| of the losses."""
        return abs(self.one_process_loss - self.ranks_loss)

    @property
    def bitwise(self) -> bool:
        """Whether the ranks and the one process have the same bits."""
        same = self.ranks_sha256 == self.one_process_sha256
        return self.ranks_equal and same and self.relative_difference == 0

    def meets(self, demand: Demand) -> bool:
        """Whether this step is as equal as it must be: NaN never is."""
        if demand.bitwise:
            return self.bitwise
        return self.ranks_equal and self.relative_difference <= demand.tolerance


@dataclass(frozen=True)
class RankRow:
    """One rank. Differences: maxima over all steps."""

    rank: int
    node: str
    parameter_sum: float
    """After the last step, in float64."""
    gradient_norm: float
    """L2, of the last step, after the all-reduce."""
    gradient_difference: float
    parameter_difference: float


@dataclass(frozen=True)
class RoundTrip:
    """Whether parameters come back with every bit, on every rank."""

    shards: bool
    """Flattened, padded, cut into one shard for each rank, gathered, unpadded."""
    state_dict: bool | None
    """The whole state saved to a file and loaded into shards of other values. None: no shards."""

    @property
    def ok(self) -> bool:
        """Both."""
        return self.shards and self.state_dict is not False


@dataclass(frozen=True)
class Report:
    """The outcome of a proof."""

    place: Place
    recipe: Recipe
    steps: tuple[StepRow, ...]
    ranks: tuple[RankRow, ...]
    batch_difference: float
    """Of `manual_all_reduce_matches_single_process`: against the concatenated batch."""
    round_trip: RoundTrip
    wire: Wire
    memory: Memory

    @property
    def demand(self) -> Demand:
        """How equal it must be."""
        return self.recipe.demand(self.place.world_size)

    @property
    def loss_difference(self) -> float:
        """The worst of all steps."""
        return worst(step.loss_difference for step in self.steps)

    @property
    def gradient_difference(self) -> float:
        """The worst of all steps and ranks."""
        return worst(step.gradient_difference for step in self.steps)

    @property
    def parameter_difference(self) -> float:
        """The worst of all steps and ranks."""
        return worst(step.parameter_difference for step in self.steps)

    @property
    def optimizer_difference(self) -> float:
        """The worst of all steps and ranks."""
        return worst(step.optimizer_difference for step in self.steps)

    @property
    def ranks_equal(self) -> bool:
        """Whether all ranks had bitwise the same parameters after every step."""
        return all(step.ranks_equal for step in self.steps)

    @property
    def bitwise(self) -> bool:
        """Whether all ranks had the one process's bits in every step."""
        return bool(self.steps) and all(step.bitwise for step in self.steps)

    @property
    def first_unequal(self) -> StepRow | None:
        """Where the ranks part from the one process, or from each other."""
        return next((step for step in self.steps if not step.meets(self.demand)), None)

    @property
    def faults(self) -> list[str]:
        """What is not as it must be; empty where all is."""
        found = []
        first = self.first_unequal
        if first is not None:
            found.append(f"from step {first.step} on")
        if not self.steps:
            found.append("without any step")
        if not self.ranks_equal:
            found.append("the ranks differ among themselves")
        if not self.batch_difference <= BATCH_TOLERANCE:
            found.append(f"on the concatenated batch (difference {self.batch_difference:.1e})")
        if not self.round_trip.ok:
            found.append("shards do not come back with the same bits")
        return [*found, *self.wire.faults, *self.memory.faults]

    @property
    def ok(self) -> bool:
        """Whether N ranks did what one process does, in every step there was, at its price."""
        return not self.faults

    @property
    def outcome(self) -> str:
        """What came out, in a few words."""
        bits = "bitwise " if self.bitwise or self.demand.bitwise else ""
        faults = "" if self.ok else " " + ", and ".join(self.faults)
        return f"{'' if self.ok else 'NOT '}{bits}equal to one process{faults}"

    @property
    def verdict(self) -> str:
        """One line for people."""
        return (
            f"{self.outcome}: "
            f"max |difference| of gradients {self.gradient_difference:.1e}, "
            f"of parameters {self.parameter_difference:.1e}, "
            f"of optimiser states {self.optimizer_difference:.1e}; "
            f"demanded: {self.demand.words} ({self.demand.reason}), "
            f"on {count(self.place.world_size, 'rank')} / {count(self.place.nodes, 'node')}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the schema's version."""
        data = {
            "schema": SCHEMA,
            "ok": self.ok,
            "verdict": self.verdict,
            **asdict(self.place),
            "recipe": asdict(self.recipe),
            "demanded": self.demand._asdict(),
            "loss_difference": self.loss_difference,
            "gradient_difference": self.gradient_difference,
            "parameter_difference": self.parameter_difference,
            "optimizer_difference": self.optimizer_difference,
            "ranks_equal": self.ranks_equal,
            "bitwise": self.bitwise,
            "manual_all_reduce_matches_single_process": {
                "difference": self.batch_difference,
                "tolerance": BATCH_TOLERANCE,
            },
            "fsdp_round_trip": asdict(self.round_trip),
            "wire": asdict(self.wire),
            "memory": asdict(self.memory),
            "ranks": [asdict(rank) for rank in self.ranks],
            "steps": [asdict(step) for step in self.steps],
        }
        return {key: _finite_or_null(value) for key, value in data.items()}

    def dumps(self) -> str:
        """The JSON text."""
        return json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Report":
        """The report that `to_json` described.

        Raises:
            ValueError: it has another schema.
        """
        if data.get("schema") != SCHEMA:
            raise ValueError(f"a proof of schema {data.get('schema')!r}, expected {SCHEMA}")
        return cls(
            place=_fill(Place, data),
            recipe=Recipe(**data["recipe"]),
            steps=tuple(_fill(StepRow, step) for step in data["steps"]),
            ranks=tuple(_fill(RankRow, rank) for rank in data["ranks"]),
            batch_difference=_number(
                data["manual_all_reduce_matches_single_process"]["difference"]
            ),
            round_trip=RoundTrip(**data["fsdp_round_trip"]),
            wire=Wire(**data["wire"]),
            memory=Memory(**data["memory"]),
        )


def worst(differences: Iterable[float]) -> float:
    """The largest; NaN if any is, which `max` would overlook; 0 of none."""
    values = list(differences)
    return math.nan if any(map(math.isnan, values)) else max(values, default=0.0)


def count(number: int, noun: str) -> str:
    """As one says it."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _finite_or_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite_or_null(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite_or_null(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> Any:
    return math.nan if value is None else value


T = TypeVar("T", Place, StepRow, RankRow)


def _fill(kind: type[T], data: Mapping[str, Any]) -> T:
    return kind(**{field.name: _number(data[field.name]) for field in fields(kind)})
