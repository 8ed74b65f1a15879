"""Where a run stands, by what its controller wrote into state.json."""

import json
from pathlib import Path
from typing import Literal

from lab.node.processes import lives

RunState = Literal[
    "running",
    "finished",
    "died",  # its controller died before it could say how the run ended
]


def run_state(run: Path) -> RunState | None:
    """The state of the run with that directory; None: there is none.

    Raises:
        PermissionError: it is another user's, and not ours to judge.
    """
    try:
        info = json.loads((run / "state.json").read_text())
        if info["state"] != "running":
            return "finished"
        if "slurm" in info:  # nobody on this machine looks after it
            return "running"
        return "running" if lives(info["controller"]) else "died"
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError):  # not whole: nobody writes it any more
        return "died"
