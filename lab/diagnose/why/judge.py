"""From the evidence to the verdict."""

from collections.abc import Mapping
from typing import Any

from lab.diagnose.finding import Finding


def diagnose(evidence: Mapping[str, Any]) -> Finding:
    """Name who is guilty of a hang, or of the end of a run.

    Args:
        evidence: what was gathered from the nodes and ranks: docs/why.md describes it.
    """
    size = evidence["world_size"]
    return Finding("unknown", "error", f"nothing tells which of the {size} ranks is guilty")
