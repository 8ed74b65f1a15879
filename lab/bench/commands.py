"""Commands as a user types them, each as a whole: lab's beside others'."""

import os
import resource
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lab.children import child
from lab.errors import LabError


class Way(NamedTuple):
    """One tool."""

    name: str
    argv: Sequence[str]
    env: dict[str, str]
    stdin: str = ""
    cwd: Path | None = None


def measured(way: Way) -> tuple[float, float]:
    """Seconds from its start to its end, and of computation on this side.

    Raises:
        LabError: it fails.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    pipe = subprocess.PIPE
    env = {**os.environ, **way.env}
    with child(way.argv, env=env, cwd=way.cwd, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        said, error = process.communicate(way.stdin)
    if process.returncode != 0:
        raise LabError(f"{way.name} failed: {error.strip() or said.strip()}")
    taken = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def compared_to_best(taken: dict[str, list[tuple[float, float]]]) -> list[dict[str, Any]]:
    """A row for each tool, the first of which is lab's; `taken`: what `measured` has said."""
    medians = {way: statistics.median(one for one, _ in values) for way, values in taken.items()}
    _, *others = medians.values()
    best = min(others) if others else None
    return [
        {
            "way": way,
            "median": medians[way],
            "min": min(one for one, _ in values),
            "max": max(one for one, _ in values),
            "of the best other": None if best is None else medians[way] / best,
            "cpu": statistics.median(computed for _, computed in values),
            "all": [one for one, _ in values],
        }
        for way, values in taken.items()
    ]
