"""What the ranks of `lab lesson run` run: lessons, one after another in the same processes.

Starting the ranks takes longer than most lessons do.
"""

import json
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from lab.errors import EXIT_FAILURE, LabError
from lab.lessons.notebook import Notebook, perform, ranks
from lab.lessons.report import RESULT
from lab.training.arguments import ArgumentParser
from lab.training.checkpoints.files import atomic_file
from lab.training.world import BACKENDS


def main(argv: Sequence[str] | None = None) -> int:
    """Do the exercises of these modules; rank 0 leaves each one's report as it is done.

    Returns:
        The exit code; on rank 0 it is 1 where something was not as theory says.
    """
    parser = ArgumentParser("lab.lessons.worker", description="Exercises: see `lab lesson`.")
    parser.add_argument("modules", nargs="+", metavar="MODULE", help="with an exercise")
    parser.add_argument("--backend", choices=BACKENDS, default="auto")
    options = parser.parse_args(argv)
    folder = Path(os.environ.get("LAB_RUN_DIR") or ".")
    wrong = False
    try:
        with ranks(options.backend) as world:
            for name in options.modules:
                module = import_module(name)
                Notebook(world).say((module.__doc__ or name).partition("\n")[0])
                report = perform(module.exercise, world)
                wrong = wrong or not report.ok
                if world.is_main:
                    with atomic_file(folder / RESULT.format(module=name)) as file:
                        file.write(json.dumps(report.to_json()).encode())
                Notebook(world).say("")
    except LabError as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return error.exit_code
    # Were it every rank's, `lab` would end rank 0 as another one's victim before it has reported.
    return EXIT_FAILURE if wrong and world.is_main else 0


if __name__ == "__main__":
    sys.exit(main())
