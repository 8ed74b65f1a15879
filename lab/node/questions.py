"""How `lab why` asks whoever looks after a run: through files in the run directory.

    why/ask.json       `[{"number": N}, ...]`, the last few questions: somebody wants to know
    why/<N>.json       the answer of a run's controller, which will do for all questions before
    why/<N>/rank3.json the answer of one rank, where there is no controller (Slurm)

A question to ranks also has "what" and may have "peers" and "master" as `probe` of
`lab.node.protocol` has them, and "by": the ranks that are to try to reach those. Ranks look now and
then, and answer each question that they have not seen. Who asks makes the folder for the answers,
and takes it away.
"""

import contextlib
import json
import shutil
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from lab.node.meeting import read, write_whole

FOLDER = "why"
ASK = "ask.json"
ANSWER = "why.json"
"""Beside the folder: what was last found out, whoever asked."""
KEPT = 8
"""Questions in the file: there are never so many at one time."""


def asked(run: Path) -> list[dict[str, Any]]:
    """The last questions, the newest at the end; empty: nobody has asked."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((run / FOLDER / ASK).read_text())
        return [{**one, "number": int(one["number"])} for one in found]
    return []


def question(run: Path) -> int | None:
    """The number of the last one; None: nobody has asked."""
    return max((one["number"] for one in asked(run)), default=None)


def put(run: Path) -> int:
    """Ask the controller; the question's number.

    Raises:
        OSError: the run directory cannot be written.
    """
    number = _new_number(run)
    _add(run, {"number": number})
    return number


class RankQuestion:
    """One to all ranks, where there is no controller."""

    def __init__(self, run: Path, what: str, **more: Any) -> None:
        """Ask.

        Raises:
            OSError: the run directory cannot be written.
        """
        self._run = run
        self.number = _new_number(run)
        self._asked = {"number": self.number, "what": what, **more}
        self._folder = rank_answer(run, self.number, 0).parent
        self._folder.mkdir()
        _add(run, self._asked)

    def keep(self) -> None:
        """Ask again where another one that asked at the same moment has overwritten it.

        Raises:
            OSError: the run directory cannot be written.
        """
        if self._asked not in asked(self._run):
            _add(self._run, self._asked)

    def answers(self, ranks: Collection[int]) -> dict[int, dict[str, Any]]:
        """What those of these ranks say that have answered by now."""
        there = set(self._folder.iterdir())  # one look, not one for each of many ranks
        found = {rank: rank_answer(self._run, self.number, rank) for rank in ranks}
        told = {rank: read(path) for rank, path in found.items() if path in there}
        return {rank: state for rank, state in told.items() if isinstance(state, dict)}

    def close(self) -> None:
        """Nobody reads the answers any more."""
        shutil.rmtree(self._folder, ignore_errors=True)


def rank_answer(run: Path, number: int, rank: int) -> Path:
    """Where a rank's own answer goes."""
    return run / FOLDER / str(number) / f"rank{rank}.json"


def _new_number(run: Path) -> int:
    """One that grows, also where a clock was set back, or that of another machine is ahead."""
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    before = [int(path.stem) for path in folder.glob("[0-9]*") if path.stem.isdecimal()]
    return max(time.time_ns(), *(n + 1 for n in (*before, question(run) or 0)))


def _add(run: Path, new: dict[str, Any]) -> None:
    """Beside the questions of others, which may not have been seen by all."""
    kept = sorted([*asked(run), new], key=lambda one: int(one["number"]))[-KEPT:]
    write_whole(run / FOLDER / ASK, kept)
