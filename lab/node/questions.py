"""How `lab why` asks whoever looks after a run: through files in the run directory.

    why/ask.json       {"number": N}: somebody wants to know
    why/<N>.json       the answer of a run's controller
    why/<N>/rank3.json the answer of one rank, where there is no controller (Slurm)

Numbers grow, so an answer to a later question will do for all before.
"""

import contextlib
import json
from pathlib import Path

FOLDER = "why"
ASK = "ask.json"


def question(run: Path) -> int | None:
    """The number of the last question; None: nobody has asked."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        return int(json.loads((run / FOLDER / ASK).read_text())["number"])
    return None


def rank_answer(run: Path, number: int, rank: int) -> Path:
    """Where a rank's own answer goes."""
    return run / FOLDER / str(number) / f"rank{rank}.json"
