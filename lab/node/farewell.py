"""What the other ranks of a job do when one has failed, asked before they are ended for it (Slurm).

srun and torchrun end all ranks as soon as the task of one has ended with a failure. So that task
waits for a moment: the first one asks the others, all wait until those have answered or ended.
"""

import contextlib
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from lab.node.places import events_of
from lab.node.questions import FOLDER, RankQuestion
from lab.node.victims import VICTIM_PATIENCE

POLL = 0.1
PATIENCE = 2.0
"""Seconds for the others, which look for a question once a second."""
TAIL = 1 << 16
"""Bytes of a rank's events that are looked at for its end."""


def hear_others(
    run: Path,
    rank: int,
    places: Mapping[int, str],
    beginning: str,
    report: Callable[..., None],
    *,
    is_victim: bool,
) -> None:
    """Return when the others have been heard of, or have not been for too long.

    Args:
        run: the run directory.
        rank: whose end this is.
        places: by rank its node, of all ranks.
        beginning: tells this beginning of the ranks from those before.
        report: for the event `asked`, with the question's `number`.
        is_victim: whether it looks as if another one had failed before, who may say so only later.
    """
    give_up = time.monotonic() + (VICTIM_PATIENCE if is_victim else PATIENCE)
    claim = run / FOLDER / f"failed-{beginning}"
    done = claim / "heard"
    try:
        claim.mkdir(parents=True)
    except OSError:  # another one has asked
        while time.monotonic() < give_up and not done.exists():
            time.sleep(POLL)
        return
    with contextlib.suppress(OSError):  # a full disk is not the rank's affair
        question = RankQuestion(run, "state")
        report("asked", rank=rank, number=question.number)
        others = {n: name for n, name in places.items() if n != rank}
        ended: set[int] = set()
        heard: set[int] = set()
        while time.monotonic() < give_up:
            heard |= question.answers(others.keys() - heard).keys()
            silent = others.keys() - heard
            # Who has not begun has nothing to say, and is nobody's cause.
            asked = (others.keys() if is_victim else silent) - ended
            last = {n: _last_word(run, n, others[n]) for n in asked}
            ended |= {n for n, word in last.items() if word == "exit"}
            running = {n for n, word in last.items() if word == "started"}
            if (ended or not is_victim) and not silent & running:
                break
            question.keep()
            time.sleep(POLL)
        done.touch()


def _last_word(run: Path, rank: int, node: str) -> Literal["started", "exit"] | None:
    """Which of both its events have last; None: it has not begun."""
    try:
        with events_of(run, node, rank).open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            text = file.read()
    except OSError:
        return None
    # Without either in its tail, it has told a lot since it has begun.
    return "exit" if text.rfind(b'"type":"exit"') > text.rfind(b'"type":"started"') else "started"
