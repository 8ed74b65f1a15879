"""What the ranks have noted of what they do: see `lab.rank.audit`."""

from collections.abc import Mapping
from typing import Any

Record = Mapping[str, Any]
"""What a rank noted: `check`, `step` and what the check adds."""


def line_of(record: Record) -> dict[str, Any]:
    """Its line of the script, as a `Finding` says it."""
    return {name: record[name] for name in ("file", "line", "function")}
