"""Stacks of a process that cannot answer, read from outside by py-spy.

It reads the process's memory and never stops it (`--nonblocking`), so that nothing stays frozen
whatever happens to py-spy; a stack that changes meanwhile may come out wrong, which one that hangs
does not. That needs the right to trace the process (ptrace(2)).
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from lab.rank.frames import RANK, is_labs, told

NAME = "py-spy"
_BEGIN = re.compile(rb"^\[(?=\s*$|\{|\])", re.MULTILINE)
MISSING = "py-spy is not installed on this node: pip install py-spy"


def command(pid: int) -> list[str] | None:
    """How to have the stacks of a process as JSON; None: py-spy is not here."""
    beside = Path(sys.executable).parent / NAME
    found = str(beside) if beside.exists() else shutil.which(NAME)
    return None if found is None else [found, "dump", "--nonblocking", "--json", "--pid", str(pid)]


def environment() -> dict[str, str]:
    """What it runs with: without the variable by which programs in Rust say more than was asked."""
    return {name: value for name, value in os.environ.items() if name != "RUST_LOG"}


def parsed(output: bytes, start_folder: str) -> list[dict[str, Any]]:
    """The threads of `command`'s output, as `lab.rank.state` tells of them.

    Raises:
        ValueError: there are none in it.
    """
    found = []
    begin = _BEGIN.search(output)  # what py-spy logs comes before, and has brackets of its own
    if begin is None:
        raise ValueError("no stacks")
    for thread in json.loads(output[begin.start() :]):
        main = thread["thread_name"] == "MainThread"  # the system's ids are now and then wrong
        frames = [
            told(frame["filename"], frame["line"], frame["name"], start_folder)
            for frame in thread["frames"]
            if not is_labs(frame["filename"])
        ]
        began = thread["frames"][-1]["filename"] if thread["frames"] else ""
        # One without frames is no thread: py-spy shows some twice that it finds half made.
        if frames and (main or not began.startswith(RANK)):
            name = thread["thread_name"] or f"thread {thread['thread_id']}"
            found.append({"name": name, "main": main, "frames": frames})
    return sorted(found, key=lambda one: not one["main"])


def why_not(errors: bytes) -> str:
    """What py-spy said when it could not, in a line."""
    text = errors.decode(errors="replace")
    if "ermission" in text or "EPERM" in text:
        return "ptrace is denied on this node (see docs/why.md), so its stack cannot be read"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = next((line for line in lines if line.startswith("Error")), lines[0] if lines else "")
    return f"py-spy: {first.removeprefix('Error: ') or 'no answer'}"


def is_denied(error: str) -> bool:
    """Whether `why_not` said that this node does not allow it."""
    return error.startswith("ptrace is denied")
