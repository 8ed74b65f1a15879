"""Several requests to an engine: all of them or none, whenever Ctrl-C comes.

`lab.threads.side_by_side` is for what may be cut off in the middle instead.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

from lab import interrupts

T = TypeVar("T")

PARALLEL = 8
TURN = 0.1
"""Seconds after which Ctrl-C is looked for again."""


def whole_or_nothing(make: Callable[[Callable[[], None]], T], undo: Callable[[], None]) -> T:
    """Make something on the engine, or leave nothing of it, whenever Ctrl-C comes.

    What has been asked of an engine it does, also when nobody waits for it any more: so Ctrl-C is
    heard only where `make` calls what it is given.
    """
    with interrupts.deferred() as check:
        try:
            made = make(check)
            check()
        except BaseException:
            undo()
            raise
    return made


def at_once(tasks: Sequence[Callable[[], T]], check: Callable[[], None] = lambda: None) -> list[T]:
    """Do several at the same time; what came of each, in order.

    Where one fails, or `check` raises, no more are begun, and those that are come to their end.
    """
    pool = ThreadPoolExecutor(min(PARALLEL, max(1, len(tasks))))
    try:
        waiting = [pool.submit(task) for task in tasks]
        jobs = list(waiting)
        while waiting:
            ended, waiting = map(list, wait(waiting, TURN, FIRST_EXCEPTION))
            for job in ended:
                job.result()
            check()
        return [job.result() for job in jobs]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
