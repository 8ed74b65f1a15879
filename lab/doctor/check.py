"""What one check of the doctor came to."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Status = Literal["pass", "warn", "fail"]
STATUSES: tuple[Status, ...] = ("pass", "warn", "fail")
"""From good to bad."""


@dataclass(frozen=True)
class Check:
    """One line of the report: what was found on some nodes, and what to do about it."""

    name: str
    """Of the check; several lines may have one."""
    status: Status
    found: str
    nodes: tuple[str, ...] = ()
    """Those that it is about."""
    cure: str | None = None
    """None where nothing is to be done."""

    def as_data(self) -> dict[str, Any]:
        """For programs."""
        return asdict(self)


def worst(checks: Iterable[Check]) -> Status:
    """The worst status among them."""
    return max((check.status for check in checks), key=STATUSES.index, default="pass")


def warn_all(name: str, problems: Mapping[str, tuple[str, str]]) -> list[Check]:
    """A warning for each different problem, (what, cure) by node, with all nodes that have it."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for node, problem in problems.items():
        nodes.setdefault(problem, []).append(node)
    return [
        Check(name, "warn", f"{what} on {listed(tuple(ones))}", tuple(ones), cure)
        for (what, cure), ones in nodes.items()
    ]


def listed(names: Sequence[str]) -> str:
    """`node1`, `node1 and node2`, `node0, node1 and node2`, or the first four and how many more."""
    if len(names) > 5:
        return f"{', '.join(names[:4])} and {len(names) - 4} more"
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
