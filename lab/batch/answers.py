"""What Slurm's commands say of jobs, in each of the forms that versions 20 to 25 have for it.

Text is the same in all of them. JSON is not: a state is a word up to 23.02 and a list of words
since, in `sacct` one level deeper; numbers and lists of hosts come bare or wrapped.
"""

import json
import re
from collections.abc import Collection, Mapping
from typing import Any

from lab.batch.job_state import JobState

_FIELD = r"(?:^|\s){}=(\S*)"
NONE = ("(null)", "N/A")
"""What scontrol says where there is nothing."""


def as_columns(text: str, jobs: Collection[str]) -> dict[str, JobState]:
    """Of `squeue --format=%i|%T|%r|%N`: the jobs that are asked for."""
    found = {}
    for line in text.splitlines():
        job, state, reason, hosts = (*line.strip().split("|"), "", "", "")[:4]
        if job in jobs and state:  # else it is a warning, or of columns of the site's own
            found[job] = JobState(state, reason, hosts)
    return found


def as_shown(text: str, jobs: Collection[str]) -> dict[str, JobState]:
    """Of `scontrol --oneliner show job`."""
    found = {}
    for line in text.splitlines():
        job, state, reason, hosts = (
            "" if match is None or match[1] in NONE else match[1]
            for match in (
                re.search(_FIELD.format(name), line)
                for name in ("JobId", "JobState", "Reason", "NodeList")
            )
        )
        if job in jobs and state:
            found[job] = JobState(state, reason.replace("_", " "), hosts)
    return found


def as_json(text: str, jobs: Collection[str]) -> dict[str, JobState] | None:
    """Of `--json`, of each of the three commands; None: it is none.

    Of a job that was queued anew accounting tells more than once: the last counts.
    """
    start = re.search(r"^\s*\{", text, re.MULTILINE)  # before it there may be warnings
    if start is None:
        return None
    try:
        told, _ = json.JSONDecoder().raw_decode(text[start.start() :].lstrip())
    except ValueError:
        return None
    found = {}
    listed = told.get("jobs") if isinstance(told, dict) else None
    for one in listed if isinstance(listed, list) else ():
        job = str(_number(one.get("job_id"))) if isinstance(one, dict) else ""
        if job not in jobs:  # squeue 21 and 22 tell of all, whatever is asked for
            continue
        state, reason = one.get("job_state"), one.get("state_reason")
        if isinstance(one.get("state"), dict):  # sacct
            state, reason = one["state"].get("current"), one["state"].get("reason")
        if word := _state(state):
            found[job] = JobState(word, reason if isinstance(reason, str) else "", _hosts(one))
    return found


def _number(value: Any) -> Any:
    return value.get("number") if isinstance(value, Mapping) else value


def _state(value: Any) -> str:
    """One word, as text has it: what goes on (`COMPLETING`) comes before what was or will be."""
    words = value if isinstance(value, list) else [value]
    words = [word for word in words if isinstance(word, str) and word]
    return words[-1].partition(" ")[0] if words else ""


def _hosts(job: Mapping[str, Any]) -> str:
    resources = job.get("job_resources")
    inner = resources.get("nodes") if isinstance(resources, Mapping) else None
    for value in (job.get("nodes"), inner):
        if isinstance(value, Mapping):
            value = value.get("list")
        if isinstance(value, str) and value:
            return value
    return ""
