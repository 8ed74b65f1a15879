"""What a process tells of itself: where its threads are, and what its process groups do."""

import linecache
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Mapping
from types import FrameType, TracebackType
from typing import Any

from .arguments import arguments
from .exceptions import handled
from .exchanges import told as exchanges
from .frames import RANK, is_labs, told
from .groups import history, in_flight, sequence_numbers
from .helpers import told as helpers
from .messages import told as messages
from .stores import told as store_call
from .unused import unused

THREADS = 64
"""How many threads are told of at most."""
DEPTH = 128
"""How many frames of each, and the innermost of the user's own in any case."""
JOINING = "init_process_group"
CODE = 200
"""How much of a line of code."""
PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE")
"""Variables that a script may have set to something else than its launcher did."""

Told = dict[str, Any]


def pulse(start_folder: str) -> Told:
    """What is quickly told, and changes while a rank makes progress.

    Returns:
        `time` (epoch), `at`: the innermost frame of the main thread (`file:line`), `where`: the
        innermost one of the user's own code, `joins`: whether the main thread is in
        init_process_group, `seqs`: how many operations each process group has begun, `pending`:
        how many of them have not ended.
    """
    main: list[Told] = threads(start_folder, only_main=True)[0]["frames"]
    own = [frame for frame in main if frame["user"]]
    return {
        "time": time.time(),
        "at": _place(main[0]) if main else None,
        "where": _place(own[0]) if own else None,
        "joins": any(frame["function"] == JOINING for frame in main),
        "seqs": sequence_numbers(),
        "pending": in_flight(),
    }


def state(start_folder: str, trace: TracebackType | None = None) -> Told:
    """All that there is to tell: `threads`, `groups`, `collectives` and their like of docs/why.md.

    `trace`: of the exception with which the script has ended; it is what the main thread did.
    """
    found = threads(start_folder, exceptions=handled(start_folder))
    stack = [frame for frame, _ in traceback.walk_stack(_main_frame())]
    if trace is not None:
        raised = [(frame, line) for frame, line in traceback.walk_tb(trace)]
        found[0] |= {"frames": _told(reversed(raised), start_folder), "handles": None}
        stack = [frame for frame, _ in raised]
    return {
        **pulse(start_folder),
        "pid": os.getpid(),
        "threads": found,
        "env": {name: os.environ[name] for name in PLACE if name in os.environ},
        **history(start_folder),
        "messages": messages(),
        "exchanges": exchanges(),
        "helpers": helpers(),
        "unused": unused(stack),
    }


def threads(
    start_folder: str, only_main: bool = False, exceptions: Mapping[int, Told] | None = None
) -> list[Told]:
    """The threads of this process but lab's own, the main one first; frames innermost first.

    `exceptions`: what they handle, by thread.
    """
    known: dict[int, threading.Thread]
    known = threading._active  # type: ignore[attr-defined]  # `enumerate` waits for a lock
    names = {ident: thread.name for ident, thread in list(known.items())}
    main = threading.main_thread().ident
    found = []
    for ident, frame in sys._current_frames().items():
        if ident == main or not (only_main or _began_here(frame)):
            name = names.get(ident, f"thread {ident}")
            frames = _stack(frame, start_folder)
            handles = (exceptions or {}).get(ident)
            found.append(
                {
                    "name": name,
                    "main": ident == main,
                    "frames": frames,
                    "handles": handles,
                    "store": store_call(ident),
                }
            )
    return sorted(found, key=lambda one: not one["main"])[:THREADS]


def _main_frame() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def _began_here(frame: FrameType) -> bool:
    """Whether a thread began in lab's own code."""
    while frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename.startswith(RANK)


def _stack(innermost: FrameType, start_folder: str) -> list[Told]:
    frames = list(traceback.walk_stack(innermost))  # at once: the thread may go on meanwhile
    return _told(frames, start_folder)


def _told(frames: Iterable[tuple[FrameType, int]], start_folder: str) -> list[Told]:
    """The frames, innermost first, but those of lab's bootstrap and hooks.

    The innermost of the user's own has its line of code, too: calls of C, as `work.wait()` and
    `time.sleep`, have no frames.
    """
    found: list[Told] = []
    has_code = False
    for frame, line in frames:
        file = frame.f_code.co_filename
        if not is_labs(file) and (len(found) < DEPTH or not has_code):
            one = told(file, line, frame.f_code.co_qualname, start_folder)
            if one["user"] and not has_code:
                has_code = True
                one["code"] = linecache.getline(file, line).strip()[:CODE]
            elif len(found) >= DEPTH:
                continue
            called_with = arguments(frame)
            found.append(one if called_with is None else {**one, "arguments": called_with})
    return found


def _place(frame: Told) -> str:
    return f"{frame['file']}:{frame['line']}"
