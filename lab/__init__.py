"""A multi-node lab for PyTorch.

`from lab import Topology, Job, run` runs a script or a function on a topology's ranks. These names
load when they are asked for, so that `lab.parallel` in a script needs nothing but torch.
"""

import os
from typing import TYPE_CHECKING, Any

from lab.lazy import lazily

if TYPE_CHECKING:
    from lab.api import RankError, RunError, RunResult, run
    from lab.runs.job import Job
    from lab.topology import Topology, load_topology

__version__ = "0.1.0"

__all__ = ["Job", "RankError", "RunError", "RunResult", "Topology", "load_topology", "run"]

_load, __dir__ = lazily(
    globals(),
    {
        **dict.fromkeys(("RankError", "RunError", "RunResult", "run"), "lab.api"),
        "Job": "lab.runs.job",
        **dict.fromkeys(("Topology", "load_topology"), "lab.topology"),
    },
)


def __getattr__(name: str) -> Any:
    try:
        return _load(name)
    except ImportError:
        if "LAB_IMPORTING_MAIN" in os.environ:
            # A rank imports the script that began its run, on a node without a controller's
            # packages. There it only needs the names to be there.
            return type(name, (), {"__doc__": "Only where runs are begun."})
        raise
