"""`lab build`: the image of the nodes, and the user's own packages on top."""

from pathlib import Path
from typing import Annotated

import typer

from lab.cli.console import progress_line


def build(
    requirements: Annotated[
        Path | None,
        typer.Option(
            "--requirements",
            metavar="FILE",
            help="Packages for your own scripts, as pip takes them; the nodes of this folder have "
            "them from now on. Without it they have lab's own again.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Build the image of the nodes now, rather than on the first `lab up`."""
    from lab.deploy.requirements import Requirements
    from lab.transport.engine import connect
    from lab.transport.image import ensure_image, forget_requirements

    packages = None if requirements is None else Requirements.read(requirements)
    client = connect(None)
    workdir = Path.cwd().resolve()
    if packages is None:
        forget_requirements(client, workdir)
    with progress_line() as progress:
        tag = ensure_image(client, progress, packages, chosen_for=workdir)
    print(f"lab: the nodes' image is {tag}")
