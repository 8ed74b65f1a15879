"""`python -m lab.rank.call NAME`: what a rank of a function's run does. Standard library only.

The function and its arguments are in the run directory; what it returns or raises goes there.
"""

import contextlib
import json
import multiprocessing.spawn
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from lab.errors import UsageError

FOLDER = "call"
"""In the run directory."""
SETUP = "setup.json"
FUNCTION = "function.pickle"
RESULT = "rank{rank}.result"
ERROR = "rank{rank}.error"
IMPORTING = "LAB_IMPORTING_MAIN"
"""Set while a rank imports the caller's script, which must not start a run of its own then."""


def refuse_runs() -> None:
    """Raises UsageError where a rank imports the caller's script, and that begins a run."""
    if os.environ.get(IMPORTING):
        raise UsageError(
            "run() was called while a rank imported your script; "
            'put the call below if __name__ == "__main__":'
        )


def _unpickle(setup: dict[str, object], data: bytes) -> tuple[Any, Any, Any]:
    """Make importable what the caller could import, its script as `__main__` included."""
    assert isinstance(setup["path"], list)
    sys.path += [entry for entry in setup["path"] if entry not in sys.path]
    found = {f"init_{name}": setup[name] for name in ("main_path", "main_name") if name in setup}
    found = {name.replace("_main_", "_main_from_"): value for name, value in found.items()}
    os.environ[IMPORTING] = "1"
    try:
        # What a child that multiprocessing has spawned does: the script, but not as `__main__`.
        multiprocessing.spawn.prepare(found)
        # Written by the caller into a directory of its own, no less trusted than its script.
        function, args, kwargs = pickle.loads(data)  # noqa: S301
    finally:
        del os.environ[IMPORTING]
    return function, args, kwargs


def _keep(name: str, value: object) -> None:
    path = Path(os.environ["LAB_RUN_DIR"]) / FOLDER / name.format(rank=os.environ["RANK"])
    temporary = path.with_suffix(".writing" + path.suffix)
    temporary.write_bytes(pickle.dumps(value))
    temporary.replace(path)


def main() -> None:
    """Call the function; keep what comes of it."""
    folder = Path(os.environ["LAB_RUN_DIR"]) / FOLDER
    setup = json.loads((folder / SETUP).read_text())
    function, args, kwargs = _unpickle(setup, (folder / FUNCTION).read_bytes())
    try:
        result = function(*args, **kwargs)
    except Exception as error:
        with contextlib.suppress(Exception):  # not every exception can be pickled
            _keep(ERROR, error)
        raise
    try:
        _keep(RESULT, result)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        name = getattr(function, "__qualname__", repr(function))
        raise TypeError(f"what {name} returned cannot be sent back: {error}") from None


if __name__ == "__main__":
    main()
