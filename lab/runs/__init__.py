"""What a run is: a job on a topology, its controller, its directory and its verdict.

These names load when they are asked for: what is known of a run's ranks is judged also on hosts
that have no more than Python's own library and torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.runs.controller import RunController
    from lab.runs.directory import RunDirectory, log_path
    from lab.runs.files import write_atomically, write_json
    from lab.runs.job import Job
    from lab.runs.listener import Listener
    from lab.runs.variables import job_variables
    from lab.runs.verdict import Failure, Verdict

__all__ = [
    "Failure",
    "Job",
    "Listener",
    "RunController",
    "RunDirectory",
    "Verdict",
    "job_variables",
    "log_path",
    "write_atomically",
    "write_json",
]

_HOMES = {
    "Failure": "verdict",
    "Job": "job",
    "Listener": "listener",
    "RunController": "controller",
    "RunDirectory": "directory",
    "Verdict": "verdict",
    "job_variables": "variables",
    "log_path": "directory",
    "write_atomically": "files",
    "write_json": "files",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lab.runs' has no attribute {name!r}")
    return getattr(import_module(f"lab.runs.{_HOMES[name]}"), name)
