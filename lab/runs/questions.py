"""`lab why` and a run's controller: see `lab.node.questions`. why.json has the last answer."""

import contextlib
import time
from pathlib import Path
from typing import Any

from lab.errors import LabError
from lab.node.questions import ANSWER, ASK, FOLDER, put, question
from lab.runs.directory import RunDirectory, explained
from lab.runs.files import write_json

POLL = 0.1
PATIENCE = 20.0
"""Seconds for an answer: the evidence takes a few where ranks or nodes are silent."""


def ask(run: RunDirectory) -> int:
    """Put the question; its number.

    Raises:
        LabError: the run directory cannot be written.
    """
    with explained(run.path):
        return put(run.path)


def wait(run: RunDirectory, number: int) -> dict[str, Any]:
    """The answer to the question.

    Raises:
        LabError: none comes.
    """
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        for path in (run.path / FOLDER).glob("[0-9]*.json"):
            if int(path.stem) >= number:
                answer = run.read_json(f"{FOLDER}/{path.name}")
                if isinstance(answer, dict):
                    return answer
        if run.state != "running":
            break
        time.sleep(POLL)
    raise LabError(
        f"run {run.id}: no answer from its controller in {PATIENCE:g} s; is it stopped (Ctrl-Z)?"
        if run.state == "running"
        else f"run {run.id} has ended meanwhile: lab why {run.id} says what is known"
    )


class Desk:
    """The controller's side: where questions come in and answers go out."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._folder = run / FOLDER

    def question(self) -> int | None:
        """The number of one that waits, which is taken; None: there is none."""
        number = question(self._run)
        if number is not None:
            (self._folder / ASK).unlink(missing_ok=True)
        return number

    def publish(self, data: dict[str, Any]) -> None:
        """Keep it with the run; quiet where the disk is full: it is told otherwise, too."""
        with contextlib.suppress(OSError):
            write_json(self._run / ANSWER, data)

    def answer(self, number: int, data: dict[str, Any]) -> None:
        """Answer it, and all before; quiet where the disk is full: nobody waits for ever."""
        with contextlib.suppress(OSError):
            for old in self._folder.glob("[0-9]*.json"):
                old.unlink()
            write_json(self._folder / f"{number}.json", data)
