"""Checkpoints of a training: `Checkpoints` saves and loads them. Read `checkpoints.py` first.

The name loads when it is asked for: `lab ckpt` looks at what is on the disk, without torch.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lab.training.checkpoints.checkpoints import Checkpoints

__all__ = ["Checkpoints"]


def __getattr__(name: str) -> Any:
    if name != "Checkpoints":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from lab.training.checkpoints.checkpoints import Checkpoints

    return Checkpoints
