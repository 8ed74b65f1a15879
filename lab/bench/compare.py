"""Repeated measurements as numbers to show: medians with their spread, and ratios pair by pair."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

MILLI = 1e-3


def spread(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, first and third quartile."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    first, median, third = statistics.quantiles(values, n=4, method="inclusive")
    return median, first, third


def timing(seconds: Sequence[float]) -> dict[str, Any]:
    """Columns for the times of one thing: `ms` is the median, `q1` and `q3` are the quartiles."""
    median, first, third = (value / MILLI for value in spread(seconds))
    return {"ms": median, "q1": first, "q3": third, "all ms": [s / MILLI for s in seconds]}


def ratio(name: str, seconds: Sequence[float], baseline: Sequence[float]) -> dict[str, Any]:
    """A column `/ name`: the median of the ratios of measurements that were taken side by side.

    A machine that others use as well has slow minutes; they fall on both sides of such a pair.
    """
    median, first, third = spread([a / b for a, b in zip(seconds, baseline, strict=True)])
    return {f"/ {name}": median, f"/ {name}, quartiles": [first, third]}


def compared(
    taken: Mapping[str, Sequence[float]], baselines: Mapping[str, str], what: str = "step"
) -> list[dict[str, Any]]:
    """A row for each thing that was timed.

    Args:
        taken: seconds by the name of the thing; the n-th ones were taken side by side.
        baselines: name of a column of ratios, and of the thing that it divides by.
        what: title of the column of the names.
    """
    return [
        {
            what: name,
            **timing(seconds),
            **{
                key: value
                for column, baseline in baselines.items()
                for key, value in ratio(column, seconds, taken[baseline]).items()
            },
        }
        for name, seconds in taken.items()
    ]


def fastest(taken: Mapping[str, Sequence[float]], names: Sequence[str]) -> str:
    """Which of the names has the least median."""
    return min(names, key=lambda name: statistics.median(taken[name]))
