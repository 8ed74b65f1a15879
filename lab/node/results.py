"""Hands what ranks have left in a run directory to a controller that cannot see it.

Carried to a host over stdin (`lab.deploy.program`); imports nothing of lab. The question is a line
of JSON; the answer one, too, and then a tar file. When stdin says that it has arrived, what was
sent of the run directory is removed, and the directory with it if nothing stays.
"""

import contextlib
import json
import os
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

ARRIVED = b"arrived\n"


def matching(folder: Path, pattern: str) -> Iterator[Path]:
    """The files that a pattern means, with all that is below its folders; no links, nor by links.

    Args:
        folder: what the pattern is relative to.
        pattern: as `Path.glob` takes it.
    """
    top = folder.resolve()
    for path in sorted(folder.glob(pattern)):
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and file.resolve() == top / file.relative_to(folder):
                yield file


def main() -> None:
    """Hand over.

    The question has `run_dir`; `limit`, so that its files of more bytes stay and are named;
    `collect`, patterns of files to bring whatever their size, also from `folder`, where the ranks
    started; and the name of the `node`, whose folder those get into.
    """
    question = json.loads(sys.stdin.buffer.readline())
    run, folder, node = Path(question["run_dir"]), Path(question["folder"]), question["node"]
    wanted = {pattern: set(matching(run, pattern)) for pattern in question["collect"]}
    collected = {pattern: set(matching(folder, pattern)) for pattern in question["collect"]}
    asked_for = set().union(*wanted.values())
    files = list(matching(run, "**"))
    sent = [p for p in files if p in asked_for or p.stat().st_size <= question["limit"]]
    left = [path for path in files if path not in sent]
    members = [(path, str(path.relative_to(run))) for path in sent]
    members += [
        (path, f"{node}/{path.relative_to(folder)}")
        for path in sorted(set().union(*collected.values()))
    ]
    found = [pattern for pattern in wanted if wanted[pattern] or collected[pattern]]
    out = sys.stdout.buffer
    answer = {"left": [str(path) for path in left], "found": found}
    out.write(json.dumps(answer).encode() + b"\n")
    with tarfile.open(fileobj=out, mode="w|") as archive:
        for path, name in members:
            archive.add(path, name, recursive=False)
    out.flush()
    os.close(1)
    if sys.stdin.buffer.readline() != ARRIVED:
        return
    for path in sent:
        path.unlink(missing_ok=True)
    for folder in [*sorted((p for p in run.rglob("*") if p.is_dir()), reverse=True), run]:
        with contextlib.suppress(OSError):  # something stays in it
            folder.rmdir()
