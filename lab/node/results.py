"""Hands what ranks have left in a run directory to a controller that cannot see it.

Carried to a host over stdin (`lab.deploy.program`); imports nothing of lab. The question is a line
of JSON; the answer one, too, and then a tar file. When stdin says that it has arrived, what was
sent is removed, and the directory with it if nothing stays.
"""

import contextlib
import json
import os
import sys
import tarfile
from pathlib import Path

ARRIVED = b"arrived\n"


def main() -> None:
    """Answer `run_dir` and `limit`: files of more bytes stay, and are named."""
    question = json.loads(sys.stdin.buffer.readline())
    run = Path(question["run_dir"])
    files = [path for path in sorted(run.rglob("*")) if path.is_file() and not path.is_symlink()]
    sent = [path for path in files if path.stat().st_size <= question["limit"]]
    left = [path for path in files if path not in sent]
    out = sys.stdout.buffer
    out.write(json.dumps({"left": [str(path) for path in left]}).encode() + b"\n")
    with tarfile.open(fileobj=out, mode="w|") as archive:
        for path in sent:
            archive.add(path, str(path.relative_to(run)), recursive=False)
    out.flush()
    os.close(1)
    if sys.stdin.buffer.readline() != ARRIVED:
        return
    for path in sent:
        path.unlink(missing_ok=True)
    for folder in [*sorted((p for p in run.rglob("*") if p.is_dir()), reverse=True), run]:
        with contextlib.suppress(OSError):  # something stays in it
            folder.rmdir()
