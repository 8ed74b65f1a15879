"""What a proof found, as data and in words. No torch here: the controller reads reports too."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

SCHEMA = 1
"""Of the JSON, `schema` in it. Not finite numbers are null."""
TOLERANCE = 1e-6
"""Largest |difference| in float32 that counts as equal."""
BATCH_TOLERANCE = 1e-3
"""The same for `manual_all_reduce_matches_single_process`."""


@dataclass(frozen=True)
class Setting:
    """What was compared."""

    topology: str
    nodes: int
    world_size: int
    torch: str
    """Version."""
    backend: str
    parallel: str
    impl: str
    all_reduce: str
    bucket_cap_mb: float
    find_unused_parameters: bool
    static_graph: bool
    optimizer: str
    learning_rate: float
    batch_size: int
    """Per rank."""
    seed: int
    tolerance: float = TOLERANCE


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
    ranks_equal: bool
    """Whether the parameters are bitwise the same on every rank."""

    @property
    def loss_difference(self) -> float:
        """|difference| of the losses."""
        return abs(self.one_process_loss - self.ranks_loss)

    def within(self, tolerance: float) -> bool:
        """Whether this step is equal: NaN never is."""
        differences = self.loss_difference, self.gradient_difference, self.parameter_difference
        return self.ranks_equal and all(difference <= tolerance for difference in differences)


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
class Report:
    """The outcome of a proof."""

    setting: Setting
    steps: tuple[StepRow, ...]
    ranks: tuple[RankRow, ...]
    batch_difference: float
    """Of `manual_all_reduce_matches_single_process`: against the concatenated batch."""

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
    def ranks_equal(self) -> bool:
        """Whether all ranks had bitwise the same parameters after every step."""
        return all(step.ranks_equal for step in self.steps)

    @property
    def bitwise(self) -> bool:
        """Whether all ranks' parameters had the one process's bits after every step."""
        same = all(step.ranks_sha256 == step.one_process_sha256 for step in self.steps)
        return bool(self.steps) and same and self.ranks_equal

    @property
    def first_unequal(self) -> StepRow | None:
        """Where the ranks part from the one process, or from each other."""
        tolerance = self.setting.tolerance
        return next((step for step in self.steps if not step.within(tolerance)), None)

    @property
    def ok(self) -> bool:
        """Whether N ranks computed what one process computes, in every step there was."""
        batch = self.batch_difference <= BATCH_TOLERANCE
        return bool(self.steps) and self.first_unequal is None and batch

    @property
    def verdict(self) -> str:
        """One line for people."""
        first = self.first_unequal
        where = ""
        if first is not None:
            where = f" from step {first.step} on"
            if not self.ranks_equal:
                where += ", and the ranks differ among themselves"
        elif not self.ok:
            where = f" on the concatenated batch (difference {self.batch_difference:.1e})"
        equal = "NOT equal" if not self.ok else "bitwise equal" if self.bitwise else "equal"
        return (
            f"{equal} to one process{where}: "
            f"max |difference| of gradients {self.gradient_difference:.1e}, "
            f"of parameters {self.parameter_difference:.1e}, "
            f"tolerance {self.setting.tolerance:.0e}, "
            f"on {_count(self.setting.world_size, 'rank')} / {_count(self.setting.nodes, 'node')}"
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the schema's version."""
        data = {
            "schema": SCHEMA,
            "ok": self.ok,
            "verdict": self.verdict,
            **asdict(self.setting),
            "loss_difference": self.loss_difference,
            "gradient_difference": self.gradient_difference,
            "parameter_difference": self.parameter_difference,
            "ranks_equal": self.ranks_equal,
            "bitwise": self.bitwise,
            "manual_all_reduce_matches_single_process": {
                "difference": self.batch_difference,
                "tolerance": BATCH_TOLERANCE,
            },
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
            setting=_fill(Setting, data),
            steps=tuple(_fill(StepRow, step) for step in data["steps"]),
            ranks=tuple(_fill(RankRow, rank) for rank in data["ranks"]),
            batch_difference=_number(
                data["manual_all_reduce_matches_single_process"]["difference"]
            ),
        )


def worst(differences: Iterable[float]) -> float:
    """The largest; NaN if any is, which `max` would overlook; 0 of none."""
    values = list(differences)
    return math.nan if any(map(math.isnan, values)) else max(values, default=0.0)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _finite_or_null(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite_or_null(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite_or_null(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _number(value: Any) -> Any:
    return math.nan if value is None else value


T = TypeVar("T", Setting, StepRow, RankRow)


def _fill(kind: type[T], data: Mapping[str, Any]) -> T:
    return kind(**{field.name: _number(data[field.name]) for field in fields(kind)})
