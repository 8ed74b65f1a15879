"""Where a rank was as a fatal signal ended it: what faulthandler wrote of its threads.

The bootstrap has faulthandler write to the descriptor of its events. Gloo, for one, aborts a rank
whose tensor is too small for what another rank sends, before the rank could say anything itself.
"""

import re
from typing import Any

from lab.rank.frames import is_labs, told

BEGIN = b"Fatal Python error: "
"""How the text begins."""
_THREAD = re.compile(r"(?:Current thread|Thread) (0x[0-9a-f]+)")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+) in (?P<function>.*)')


def stacks(text: str, start_folder: str) -> list[dict[str, Any]]:
    """The threads, as `lab.rank.state` tells of them: the main one first, innermost frame first.

    Args:
        text: what faulthandler wrote. It tells of the newest thread first, of the main one last.
        start_folder: files below it are told of without it.
    """
    found: list[dict[str, Any]] = []
    for line in text.splitlines():
        thread, frame = _THREAD.match(line), _FRAME.match(line)
        if thread:
            found.append({"name": f"thread {thread[1]}", "main": False, "frames": []})
        elif frame and found and not is_labs(frame["file"]):
            one = told(frame["file"], int(frame["line"]), frame["function"], start_folder)
            found[-1]["frames"].append(one)
    if found:
        found[-1].update(name="MainThread", main=True)
    return [thread for thread in reversed(found) if thread["frames"]]
