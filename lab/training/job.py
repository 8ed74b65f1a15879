"""A training job as a process: it joins the ranks, trains, and ends with an exit code."""

import sys
from collections.abc import Callable
from typing import TypeVar

from lab.errors import LabError
from lab.training.options import Options
from lab.training.world import World, join_world

AnyOptions = TypeVar("AnyOptions", bound=Options)


def run(program: str, options: AnyOptions, train: Callable[[World, AnyOptions], None]) -> int:
    """Call `train` as one of the ranks that the environment describes.

    Args:
        program: named before an error.
        options: backend and parallel decide on the process group.
        train: the job.

    Returns:
        The exit code: 0; 2 where the command line or the environment is wrong; 1 for other things
        that the user can put right.
    """
    try:
        with join_world(
            options.backend, group_of_one=options.parallel not in (None, "none")
        ) as world:
            train(world, options)
    except LabError as error:
        print(f"{program}: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0
