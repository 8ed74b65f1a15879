"""Hands what ranks have left in a run directory to a controller that cannot see it.

Carried to a host over stdin (`lab.deploy.program`); imports nothing of lab. The question is a line
of JSON; the answer one, too, and then a tar file, whose last member is `END`. When stdin says that
it has arrived, what was sent of the run directory is removed, and the directory with it if nothing
stays.
"""

import contextlib
import json
import os
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

ARRIVED = b"arrived\n"
END = "../end"
"""A name that no file has. A tar file that is cut off looks as if it ended well."""


def matching(folder: Path, pattern: str) -> Iterator[Path]:
    """The files that a pattern means, with all that is below its folders, each once.

    No links, nor what is only found by links.

    Args:
        folder: what the pattern is relative to.
        pattern: as `Path.glob` takes it.
    """
    top = folder.resolve()
    found: set[Path] = set()
    for path in folder.glob(pattern):
        found.update(path.rglob("*") if path.is_dir() else [path])
    for file in sorted(found):
        if file.is_file() and file.resolve() == top / file.relative_to(folder):
            yield file


def size_of(path: Path) -> int:
    """In bytes; 0 where it has gone meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def hand_over(question: Mapping[str, Any], out: BinaryIO) -> list[Path]:
    """Write the answer and the files; a file that goes meanwhile is left out.

    Args:
        question: `run_dir`; `limit`, so that its files of more bytes stay and are named; `collect`,
            patterns of files to bring whatever their size, also from `folder`, where the ranks
            started; and the name of the `node`, whose folder those get into.
        out: where to.

    Returns:
        The files of the run directory that were sent.
    """
    run, folder, node = Path(question["run_dir"]), Path(question["folder"]), question["node"]
    wanted = {pattern: set(matching(run, pattern)) for pattern in question["collect"]}
    collected = {pattern: set(matching(folder, pattern)) for pattern in question["collect"]}
    asked_for = set().union(*wanted.values())
    files = list(matching(run, "**"))
    sent = [path for path in files if path in asked_for or size_of(path) <= question["limit"]]
    left = [path for path in files if path not in sent]
    members = [(path, str(path.relative_to(run))) for path in sent]
    members += [
        (path, f"{node}/{path.relative_to(folder)}")
        for path in sorted(set().union(*collected.values()))
    ]
    found = [pattern for pattern in wanted if wanted[pattern] or collected[pattern]]
    answer = {"left": [str(path) for path in left], "found": found}
    out.write(json.dumps(answer).encode() + b"\n")
    # Dereference: a second name of a file is a file, too.
    with tarfile.open(fileobj=out, mode="w|", dereference=True) as archive:
        for path, name in members:
            with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
                archive.addfile(archive.gettarinfo(arcname=name, fileobj=file), file)
        archive.addfile(tarfile.TarInfo(END))
    out.flush()
    return sent


def main() -> None:
    """Hand over, and remove what has arrived."""
    question = json.loads(sys.stdin.buffer.readline())
    sent = hand_over(question, sys.stdout.buffer)
    os.close(1)
    if sys.stdin.buffer.readline() != ARRIVED:
        return
    run = Path(question["run_dir"])
    for path in sent:
        path.unlink(missing_ok=True)
    for folder in [*sorted((p for p in run.rglob("*") if p.is_dir()), reverse=True), run]:
        with contextlib.suppress(OSError):  # something stays in it
            folder.rmdir()
