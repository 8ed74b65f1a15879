"""A multi-node lab for PyTorch.

`from lab import Topology, Job, run` runs a script or a function on a topology's ranks. These names
load when they are asked for, so that `lab.parallel` in a script needs nothing but torch.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.api import RankError, RunError, RunResult, run
    from lab.runs.job import Job
    from lab.topology import Topology, load_topology

__version__ = "0.1.0"

__all__ = ["Job", "RankError", "RunError", "RunResult", "Topology", "load_topology", "run"]

_HOMES = {
    **dict.fromkeys(("RankError", "RunError", "RunResult", "run"), "lab.api"),
    "Job": "lab.runs.job",
    "Topology": "lab.topology",
    "load_topology": "lab.topology",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lab' has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ImportError:
        if "LAB_IMPORTING_MAIN" in os.environ:
            # A rank imports the script that began its run, on a node without a controller's
            # packages. There it only needs the names to be there.
            return type(name, (), {"__doc__": "Only where runs are begun."})
        raise


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
