"""Proof that N ranks compute what one process computes. `report` is what the controller reads."""

from lab.prove.matrix import Matrix
from lab.prove.recipe import Recipe
from lab.prove.report import Place, RankRow, Report, RoundTrip, StepRow
from lab.prove.resources import Memory, Wire

__all__ = [
    "Matrix",
    "Memory",
    "Place",
    "RankRow",
    "Recipe",
    "Report",
    "RoundTrip",
    "StepRow",
    "Wire",
]
