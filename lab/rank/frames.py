"""Files of stack frames: whose they are, and how they are told of.

Also for stacks that an agent reads from outside, of a rank that cannot answer.
"""

import os
from pathlib import Path

STANDARD_LIBRARY = str(Path(os.__file__).parent)
RANK = str(Path(__file__).parent)
"""This folder: what runs in a rank beside the script."""
LIBRARIES = (STANDARD_LIBRARY, RANK, str(Path(__file__).parents[1] / "parallel"), "<")
"""How the files of those begin who are none of the user's, where no package manager put them."""


def is_users(file: str) -> bool:
    """Whether a frame is the user's own code rather than a library's."""
    return "site-packages" not in Path(file).parts and not file.startswith(LIBRARIES)


def shown(file: str, start: str) -> str:
    """The file without the folder that the rank was started in, if it is below it."""
    return file.removeprefix(os.path.join(start, ""))  # noqa: PTH118 - with the slash at its end
