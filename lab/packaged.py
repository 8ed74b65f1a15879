"""Files that come with lab beside its code: `docker/`, `slurm/`, `docs/`."""

from pathlib import Path

import lab
from lab.errors import LabError


def packaged(name: str) -> Path:
    """One of them, or a folder: beside the package in a checkout, in the package in a wheel.

    Raises:
        LabError: it is not there.
    """
    package = Path(lab.__file__).parent
    for root in (package.parent, package / "assets"):
        if (root / name).exists():
            return root / name
    raise LabError(f"{name} is not in this installation of lab: install it again")
