"""Checkpoints of a training: `Checkpoints` saves and loads them. Read `checkpoints.py` first.

The name loads when it is asked for: `lab ckpt` looks at what is on the disk, without torch.
"""

from typing import TYPE_CHECKING

from lab.lazy import lazily

if TYPE_CHECKING:
    from lab.training.checkpoints.checkpoints import Checkpoints

__all__ = ["Checkpoints"]

__getattr__, __dir__ = lazily(globals(), {"Checkpoints": "lab.training.checkpoints.checkpoints"})
