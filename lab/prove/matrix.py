"""All methods and options on one topology, and what came of them. No torch here."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from lab.prove.recipe import OPTIONS, Recipe
from lab.prove.report import SCHEMA, Report, count

VARIATIONS: dict[str, tuple[Any, ...]] = {
    "all_reduce": ("ordered", "hierarchical"),
    "mean": ("avg", "divide_then_sum"),
    "comm_hook": ("fp16", "bf16"),
    "bucket_cap_mb": (0.0,),
    "find_unused_parameters": (True,),
    "static_graph": (True,),
    "reshard_after_forward": (False,),
    "prefetch": (False,),
    "precision": ("bfloat16",),
    "accumulate": (3,),
}
"""Each option by itself, other than its default."""
EVERYWHERE = ("accumulate", "all_reduce")
"""Of ZeRO, which is DDP in all else, and of torch's, only these."""


def recipes(base: Recipe, size: int) -> Iterator[Recipe]:
    """Each method of each implementation, plain and then with its options, one by one.

    Args:
        base: the training: steps, batch size, optimiser, learning rate, seed.
        size: number of ranks.
    """
    for impl, methods in OPTIONS.items():
        for parallel, options in methods.items():
            if parallel == "none" and size > 1:
                continue
            method: dict[str, Any] = {"impl": impl, "parallel": parallel}
            yield replace(base, **method)
            each = impl == "ours" and parallel in ("ddp", "fsdp")
            for name in sorted(options & set(VARIATIONS if each else EVERYWHERE)):
                for value in VARIATIONS[name]:
                    yield replace(base, **method, **{name: value})


@dataclass(frozen=True)
class Matrix:
    """Many proofs in one place."""

    reports: tuple[Report, ...]

    @property
    def failed(self) -> list[Report]:
        """Those that do not hold."""
        return [report for report in self.reports if not report.ok]

    @property
    def ok(self) -> bool:
        """Whether there are any and all hold."""
        return bool(self.reports) and not self.failed

    @property
    def verdict(self) -> str:
        """One line for people."""
        if self.ok:
            return f"all {count(len(self.reports), 'proof')} hold"
        titles = ", ".join(report.recipe.title for report in self.failed)
        return f"{len(self.failed)} of {count(len(self.reports), 'proof')} FAIL: {titles}"

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the schema's version."""
        place = asdict(self.reports[0].place) if self.reports else {}
        return {
            "schema": SCHEMA,
            "ok": self.ok,
            "verdict": self.verdict,
            **place,
            "proofs": [report.to_json() for report in self.reports],
        }

    def dumps(self) -> str:
        """The JSON text."""
        return json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Matrix":
        """What `to_json` described.

        Raises:
            ValueError: it has another schema.
        """
        return cls(tuple(map(Report.from_json, data["proofs"])))
