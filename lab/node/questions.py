"""How `lab why` asks whoever looks after a run: through files in the run directory.

    why/ask.json       {"number": N}: somebody wants to know; of ranks also "what" (pulse, state),
                       "peers" and "master" as `probe` of `lab.node.protocol` has them, and "by":
                       the ranks that are to try to reach those
    why/<N>.json       the answer of a run's controller
    why/<N>/rank3.json the answer of one rank, where there is no controller (Slurm)

Numbers grow, so an answer to a later question will do for all before.
"""

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from lab.node.meeting import write_whole

FOLDER = "why"
ASK = "ask.json"
ANSWER = "why.json"
"""Beside the folder: what was last found out, whoever asked."""


def asked(run: Path) -> dict[str, Any]:
    """The last question; empty: nobody has asked."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        found = json.loads((run / FOLDER / ASK).read_text())
        return {**found, "number": int(found["number"])}
    return {}


def question(run: Path) -> int | None:
    """Its number; None: nobody has asked."""
    return asked(run).get("number")


def put(run: Path, **what: Any) -> int:
    """Ask; the question's number.

    Raises:
        OSError: the run directory cannot be written.
    """
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    # Also where the clock was set back, or that of another machine that asked is ahead.
    before = [int(path.stem) for path in folder.glob("[0-9]*") if path.stem.isdecimal()]
    number = max(time.time_ns(), *(n + 1 for n in (*before, question(run) or 0)))
    write_whole(folder / ASK, {"number": number, **what})
    return number


def rank_answer(run: Path, number: int, rank: int) -> Path:
    """Where a rank's own answer goes."""
    return run / FOLDER / str(number) / f"rank{rank}.json"
