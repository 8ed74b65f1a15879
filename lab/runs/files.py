"""Files that are whole or not there, and processes that are named by more than a number."""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import psutil


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader or a crash sees the old one or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        umask = os.umask(0)
        os.umask(umask)
        Path(temporary).chmod(0o666 & ~umask)  # mkstemp makes it 0600
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, data: Any) -> None:
    """`write_atomically`, as indented JSON."""
    write_atomically(path, json.dumps(data, indent=2) + "\n")


def this_process() -> dict[str, float]:
    """What names this process for good: its pid and when it started (pids come again)."""
    process = psutil.Process()
    return {"pid": process.pid, "started": process.create_time()}


def is_alive(process: dict[str, float]) -> bool:
    """Whether the process that `this_process` described still runs."""
    try:
        found = psutil.Process(int(process["pid"]))
        # Within the clock's tick: create_time is derived from the time of boot.
        same = abs(found.create_time() - process["started"]) < 1
        return same and found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
