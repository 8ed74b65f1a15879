"""What a run is: a job on a topology, its controller, its directory and its verdict."""

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
