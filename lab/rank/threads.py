"""Threads beside the script's own: `threading` does not know them, so no script finds them."""

import _thread
from collections.abc import Callable


def begin(work: Callable[[], object]) -> None:
    """Do it in a thread, which has begun when this returns.

    One that begins while the interpreter ends finds its own state freed, and the process dies of
    SIGSEGV: that of a script which is over at once.

    Raises:
        RuntimeError: there can be no more threads.
    """
    has_begun = _thread.allocate_lock()
    has_begun.acquire()

    def run() -> None:
        has_begun.release()
        work()

    _thread.start_new_thread(run, ())
    has_begun.acquire()
