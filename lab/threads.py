"""The same for many at once, where each may wait long for somebody else."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from queue import Empty, SimpleQueue
from typing import TypeVar

LOOK_EVERY = 0.5
"""Seconds after which a wait begins anew: a signal just before one would not end it (CPython)."""
T = TypeVar("T")
R = TypeVar("R")


def side_by_side(do: Callable[[T], R], items: Iterable[T], parallel: int) -> list[R]:
    """Do something for each item, for so many at the same time.

    Unlike an executor it waits for nobody after Ctrl-C, neither here nor at the interpreter's end:
    what is under way then is cut off with the process.

    Returns:
        What came of each, in order.

    Raises:
        Exception: what came first of what `do` raised; what is under way goes on unheard.
    """
    waiting = deque(enumerate(items))
    count = len(waiting)
    ended: SimpleQueue[tuple[int, R] | BaseException] = SimpleQueue()

    def serve() -> None:
        while True:
            try:
                number, item = waiting.popleft()
            except IndexError:
                return
            try:
                ended.put((number, do(item)))
            except BaseException as error:  # noqa: BLE001 - raised where it is waited for
                ended.put(error)

    for _ in range(min(parallel, count)):
        threading.Thread(target=serve, daemon=True).start()
    results: dict[int, R] = {}
    while len(results) < count:
        try:
            end = ended.get(timeout=LOOK_EVERY)
        except Empty:
            continue
        if isinstance(end, BaseException):
            raise end
        number, result = end
        results[number] = result
    return [results[number] for number in range(count)]
