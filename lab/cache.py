"""Where lab keeps what can be made again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """The user's cache folder for lab (XDG base directory specification)."""
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    base = given if given.is_absolute() else Path.home() / ".cache"
    return base / "multinode-lab"


def wheels_folder() -> Path:
    """Packages that deployments carry to hosts."""
    return cache_folder() / "wheels"
