"""What Slurm's commands say of jobs, as versions 20 to 25 do; only what tells them apart."""

import json
from typing import Any

import pytest

from lab.batch.answers import as_columns, as_json, as_shown
from lab.batch.job_state import JobState

UNSET = {"set": False, "infinite": False, "number": 0}
LIST = {"count": 2, "select_type": ["ONE_ROW"], "list": "gpu[1-2]", "whole": False}


def meta(version: str, parser: str = "") -> dict[str, Any]:
    """As of 23.02 a plugin parses and dumps data; before, each command's own code does."""
    major, minor, _ = version.split(".")
    numbers = {"major": int(major), "micro": 3, "minor": int(minor)}
    if not parser:
        plugin = {"type": "openapi/v0.0.38", "name": "Slurm OpenAPI v0.0.38"}
        return {"plugin": plugin, "Slurm": {"version": numbers, "release": version}}
    plugin = {"data_parser": f"data_parser/{parser}", "accounting_storage": ""}
    if parser == "v0.0.39":
        return {"plugins": plugin, "Slurm": {"version": numbers, "release": version}}
    words = {name: str(number) for name, number in numbers.items()}
    slurm = {"version": words, "release": version, "cluster": "c"}
    return {"plugin": {"type": "", "name": "", **plugin}, "client": {}, "slurm": slurm}


SQUEUE = {
    "21.08": {
        "meta": meta("21.08.8"),
        "errors": [],
        "jobs": [
            {"job_id": 4, "job_state": "RUNNING", "nodes": "other", "state_reason": "None"},
            {"job_id": 5, "job_state": "RUNNING", "nodes": "gpu[1-2]", "state_reason": "None"},
            {"job_id": 6, "job_state": "PENDING", "nodes": "", "state_reason": "Priority"},
        ],
    },
    "22.05": {
        "meta": meta("22.05.8"),
        "errors": [],
        "jobs": [
            {
                "array_job_id": 0,
                "array_task_id": None,
                "job_resources": {"nodes": "gpu[1-2]", "allocated_hosts": 2},
                "job_id": 5,
                "job_state": "RUNNING",
                "nodes": "gpu[1-2]",
                "state_reason": "None",
            },
            {"job_id": 6, "job_state": "PENDING", "nodes": "", "state_reason": "Priority"},
        ],
    },
    "23.02": {
        "meta": meta("23.02.6", "v0.0.39"),
        "jobs": [
            {
                "array_task_id": UNSET,
                "job_id": 5,
                "job_resources": {"nodes": "gpu[1-2]", "allocated_hosts": 2},
                "job_state": "RUNNING",
                "nodes": "gpu[1-2]",
                "state_reason": "None",
            },
            {"job_id": 6, "job_state": "PENDING", "nodes": "", "state_reason": "Priority"},
        ],
        "warnings": [],
        "errors": [],
    },
    "23.11": {
        "jobs": [
            {
                "job_id": 5,
                "job_resources": {"nodes": "gpu[1-2]", "allocated_cores": 2},
                "job_state": ["RUNNING"],
                "nodes": "gpu[1-2]",
                "state_reason": "None",
            },
            {"job_id": 6, "job_state": ["PENDING"], "nodes": "", "state_reason": "Priority"},
        ],
        "last_backfill": {"set": True, "infinite": False, "number": 1700000000},
        "meta": meta("23.11.4", "v0.0.40"),
        "errors": [],
        "warnings": [],
    },
    "24.11": {
        "jobs": [
            {
                "job_id": 5,
                "job_resources": {"select_type": ["CORE"], "nodes": LIST, "cpus": 2},
                "job_state": ["RUNNING"],
                "nodes": "gpu[1-2]",
                "state_reason": "None",
            },
            {"job_id": 6, "job_state": ["PENDING"], "nodes": "", "state_reason": "Priority"},
        ],
        "meta": meta("24.11.5", "v0.0.42"),
        "errors": [],
        "warnings": [],
    },
    "25.11, should it wrap all there is": {
        "jobs": [
            {
                "job_id": {"set": True, "infinite": False, "number": 5},
                "job_resources": {"select_type": ["CORE"], "nodes": LIST},
                "job_state": ["RUNNING"],
                "state_reason": "None",
            },
            {"job_id": 6, "job_state": ["PENDING"], "nodes": "", "state_reason": "Priority"},
        ],
        "meta": meta("25.11.0", "v0.0.44"),
        "errors": [],
        "warnings": [],
    },
}


@pytest.mark.parametrize("version", SQUEUE)
def test_squeue_in_json(version: str) -> None:
    found = as_json(json.dumps(SQUEUE[version], indent=2), ["5", "6"])
    assert found == {
        "5": JobState("RUNNING", "None", "gpu[1-2]"),
        "6": JobState("PENDING", "Priority"),
    }


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ("COMPLETING", "COMPLETING"),
        (["CANCELLED", "COMPLETING"], "COMPLETING"),
        (["PENDING", "REQUEUED"], "REQUEUED"),
        (["RUNNING", "CONFIGURING"], "CONFIGURING"),
        ("CANCELLED by 1000", "CANCELLED"),
    ],
)
def test_a_state_is_the_word_that_text_has(told: Any, state: str) -> None:
    text = json.dumps({"jobs": [{"job_id": 5, "job_state": told}]})
    assert as_json(text, ["5"]) == {"5": JobState(state)}


@pytest.mark.parametrize(
    ("version", "parser", "current"),
    [("21.08.8", "", ""), ("23.02.6", "v0.0.39", ""), ("24.05.4", "v0.0.41", "list")],
)
def test_sacct_in_json(version: str, parser: str, current: str) -> None:
    def one(state: str) -> dict[str, Any]:
        word = [state] if current else state
        steps = [{"state": word, "step": {"name": "batch"}}]
        told = {"current": word, "reason": "None"}
        return {"job_id": 5, "nodes": "gpu[1-2]", "state": told, "steps": steps}

    text = json.dumps({"meta": meta(version, parser), "jobs": [one("NODE_FAIL"), one("FAILED")]})
    assert as_json(text, ["5"]) == {"5": JobState("FAILED", "None", "gpu[1-2]")}


SHOWN = (
    "JobId=5 JobName=train UserId=me(1000) GroupId=me(1000) MCS_label=N/A Priority=4294901732 "
    "Nice=0 Account=(null) QOS=(null) JobState={} Reason={} Dependency=(null) Requeue=1 Restarts=2 "
    "ExitCode=0:0 RunTime=00:00:04 AllocNode:Sid=login:7691 ReqNodeList=(null) ExcNodeList=(null) "
    "NodeList={} BatchHost=gpu1 NumNodes=2 NumCPUs=2 Command=/home/me/job.sbatch Power= \n"
)


@pytest.mark.parametrize(
    ("words", "state"),
    [
        (("RUNNING", "None", "gpu[1-2]"), JobState("RUNNING", "None", "gpu[1-2]")),
        (("PENDING", "Resources", "(null)"), JobState("PENDING", "Resources")),
        (("PENDING", "Resources", ""), JobState("PENDING", "Resources")),
        (
            ("PENDING", "Nodes_required_for_job_are_DOWN,_DRAINED", ""),
            JobState("PENDING", "Nodes required for job are DOWN, DRAINED"),
        ),
    ],
)
def test_scontrol_in_text(words: tuple[str, str, str], state: JobState) -> None:
    assert as_shown(SHOWN.format(*words), ["5"]) == {"5": state}
    assert as_shown(SHOWN.format(*words), ["6"]) == {}


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "warning: {x}", '{"jobs": 3', "squeue: unrecognized option '--json'"],
)
def test_what_is_no_json(text: str) -> None:
    assert as_json(text, ["5"]) is None


@pytest.mark.parametrize("jobs", ["null", "3", "[3]", '[{"job_id": 5}]', '[{"job_id": {}}]'])
def test_json_that_says_nothing(jobs: str) -> None:
    assert as_json(f'slurm.conf differs\n{{"jobs": {jobs}}}\n', ["5"]) == {}


def test_columns_of_a_sites_own_say_nothing() -> None:
    assert as_columns("JOBID STATE\n5 RUNNING\n", ["5"]) == {}
