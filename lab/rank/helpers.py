"""Threads of this process that ended by an exception, and the processes that it has begun.

Python prints such an exception and goes on: a main thread that waits for what the thread was to
bring (a batch in a queue, an event) waits for ever, and its stack does not say why.
"""

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from .endings import told as endings
from .exceptions import described, is_of_user

MOST = 32
"""How many threads are told of, and how many processes."""
MESSAGE = 1_000
HOOK = "_make_invoke_excepthook"
"""What makes, for each thread, the function that is called with an exception of it. Below
`threading.excepthook`, which is the script's own to set and to look at."""

Told = dict[str, Any]

_ended: list[Told] = []


def watch(start_folder: str) -> None:
    """Note exceptions of threads from now on."""
    make = getattr(threading, HOOK, None)
    if make is not None:
        setattr(threading, HOOK, lambda: _noting(make(), start_folder))


def told() -> Told:
    """Those that are known.

    Returns:
        `threads`: `name`, `exception` and `time` (epoch) of each that an exception has ended;
        `processes`: `name`, `pid`, `code` (null: it runs; negative: a signal) and `exception` (or
        null, where it is not known) of those that multiprocessing has begun for this one.
    """
    return {"threads": list(_ended), "processes": _processes()}


def _noting(
    hook: Callable[[threading.Thread], None], start_folder: str
) -> Callable[[threading.Thread], None]:
    def noting(thread: threading.Thread) -> None:
        try:
            _note(thread, start_folder)
        finally:
            hook(thread)

    return noting


def _note(thread: threading.Thread, start_folder: str) -> None:
    error = sys.exc_info()[1]
    if error is None or isinstance(error, SystemExit) or len(_ended) >= MOST:
        return  # a thread may end by sys.exit(), and Python says nothing of that either
    if not is_of_user(error.__traceback__):
        return  # a library's own affair
    try:
        exception = described(error, error.__traceback__, start_folder)
    except Exception:  # noqa: BLE001 - the script's own objects are looked at, and may do anything
        return
    exception["message"] = exception["message"][:MESSAGE]
    _ended.append({"name": thread.name, "exception": exception, "time": time.time()})


def _processes() -> list[Told]:
    """Those that failed first; nothing is imported, and nobody's end is taken from who waits."""
    module: Any = sys.modules.get("multiprocessing.process")
    found = []
    exceptions = endings()
    # The set of weak references itself: a WeakSet may change while another thread goes through it.
    for reference in list(getattr(getattr(module, "_dangling", None), "data", ())):
        process = reference()
        if process is None or process._parent_pid != os.getpid() or process._popen is None:
            continue
        code = _code(process._popen)
        pid = process._popen.pid
        exception = exceptions.get(pid) if code else None
        found.append({"name": process._name, "pid": pid, "code": code, "exception": exception})
    return sorted(found, key=lambda one: (not one["code"], one["pid"]))[:MOST]


def _code(popen: Any) -> int | None:
    """How it ended, without letting the system forget it."""
    if popen.returncode is not None:
        code: int = popen.returncode
        return code
    try:
        end = os.waitid(os.P_PID, popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:  # it is a fork server's child, or somebody has asked for it meanwhile
        return None
    if end is None:
        return None
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
