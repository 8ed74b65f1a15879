"""`python -m lab.cli.ssh_lab`, for `make ssh-lab`: machines to rehearse on; nothing is deployed."""

import sys

from lab.cli.console import progress_line
from lab.errors import LabError
from lab.transport.ssh_lab import MACHINES, SshLab


def main() -> None:
    """Bring it up."""
    try:
        with progress_line() as progress:
            SshLab().up(progress)
    except LabError as error:
        sys.exit(f"lab: error: {error}")
    names = [f"{m.name} ({m.slots})" for m in MACHINES if m.slots is not None]
    others = [m.name for m in MACHINES if m.slots is None]
    print(f"lab: ssh-lab is up: {', '.join(names)}; {', '.join(others)} with another Python")
    print("Next: lab deploy -t ssh-lab; lab run -t ssh-lab; lab down -t ssh-lab removes it")


if __name__ == "__main__":
    main()
