"""`lab why`: which rank a run waits for or has died of, where it is, and who is innocent."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lab.cli.console import progress_line
from lab.cli.findings import print_finding
from lab.cli.jobs import note_ends, say_end
from lab.cli.options import JsonOption, RunArgument
from lab.cli.output import write

if TYPE_CHECKING:
    from lab.runs.directory import RunDirectory


def why(
    run_id: RunArgument = None,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Also where every thread of every rank is.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Why a run is stuck or has died: which rank, where it is, what it did differently.

    A run that goes on is asked now; of one that has ended this says what was seen before its end,
    and what the audit has found.
    """
    from lab.diagnose.finding import Finding
    from lab.runs.directory import RunDirectory

    run = RunDirectory.find(Path.cwd(), run_id)
    note_ends([run])
    answer = _answer(run)
    if as_json:
        print(json.dumps({"run": run.id, "state": run.state, **(answer or _nothing())}, indent=2))
        return
    if answer is None:
        say_end(run)
    else:
        print_finding(Finding.from_json(answer["finding"]), sys.stdout)
    for found in (run.read_json("verdict.json") or {}).get("findings", ()):
        print_finding(Finding.from_json(found), sys.stdout)
    if stacks and answer is not None:
        write("\n".join(_stacks(answer["evidence"])) + "\n", sys.stdout)


def _nothing() -> dict[str, Any]:
    return {"schema": 1, "finding": None, "evidence": None}


def _answer(run: "RunDirectory") -> dict[str, Any] | None:
    """What a running run says now, or an ended one has left."""
    from lab.node.questions import ANSWER
    from lab.runs.questions import ask, wait

    if run.state == "running":
        with progress_line() as progress:
            progress(f"asking the ranks of run {run.id}")
            if "slurm" in run.info():
                from lab.batch.why import ask_ranks

                return ask_ranks(run)
            return wait(run, ask(run))
    answer = run.read_json(ANSWER)
    return answer if isinstance(answer, dict) else None


def _stacks(evidence: dict[str, Any]) -> list[str]:
    """The stacks as Python's own tracebacks have them: the innermost frame last."""
    from lab.diagnose.why.wording import exception_in_words

    lines = []
    for rank, known in evidence["ranks"].items():
        state = (known["process"] or {}).get("state") or "ended"
        source = f", read by {known['source']}" if known["source"] else ""
        lines.append(f"rank {rank} on {known['node']} (process {known['pid']}, {state}{source})")
        if known["error"]:
            lines.append(f"  {known['error']}")
        for thread in known["threads"]:
            lines += _stack(thread)
            if thread.get("handles"):
                lines.append(f"    it {exception_in_words(thread['handles'])}, and handles that")
        for child in known.get("children") or ():
            for thread in child["threads"]:
                lines += _stack({**thread, "name": f"process {child['pid']}, {thread['name']}"})
    return lines


def _stack(thread: dict[str, Any]) -> list[str]:
    frames = reversed(thread["frames"])
    places = [f"    {one['file']}:{one['line']} in {one['function']}" for one in frames]
    return [f"  {thread['name']}", *places]
