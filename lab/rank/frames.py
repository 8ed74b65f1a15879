"""Files of stack frames: whose they are, and how they are told of.

Also for stacks that an agent reads from outside, of a rank that cannot answer.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

STANDARD_LIBRARY = str(Path(os.__file__).parent)


def _places() -> list[Path]:
    """Where lab is: with links and without, by one of which a job of Slurm finds it."""
    here = Path(__file__).parents[1]
    real = here.resolve()
    given = [Path(one) / "lab" for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    return list({here, real, *(place for place in given if place.resolve() == real)})


RANK, NODE, PARALLEL = (
    tuple(str(place / name) for place in _places()) for name in ("rank", "node", "parallel")
)
"""Folders of lab: what runs beside the script, what starts it, and what it may use; each by all of
its names, as `startswith` takes them."""
PACKAGES = frozenset(("site-packages", "dist-packages"))
"""Folders into which packages are installed: Debian's Python has the second."""
LIBRARIES = (STANDARD_LIBRARY, *RANK, *NODE, *PARALLEL, "<")
"""How the files of those begin who are none of the user's, where no package manager put them."""


def is_labs(file: str) -> bool:
    """Whether a frame is of what lab runs around and beside the script: nobody wants to see it."""
    return file.startswith((*RANK, *NODE, "<frozen runpy>"))


@cache  # asked for each frame of each stack, of few files
def is_users(file: str) -> bool:
    """Whether a frame is the user's own code rather than a library's."""
    return not is_installed(file) and not file.startswith(LIBRARIES)


def is_installed(file: str) -> bool:
    """Whether a file is of a package that a package manager has put there."""
    return not PACKAGES.isdisjoint(Path(file).parts)


def shown(file: str, start: str) -> str:
    """The file without the folder that the rank was started in, if it is below it."""
    return file.removeprefix(os.path.join(start, ""))  # noqa: PTH118 - with the slash at its end


def told(file: str, line: int | None, function: str, start: str) -> dict[str, Any]:
    """A frame as stacks have it; `start`: the folder that the rank was started in (see `shown`)."""
    user = is_users(file)
    return {"file": shown(file, start), "line": line, "function": function, "user": user}
