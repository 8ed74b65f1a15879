"""Training jobs and their parts. The jobs are modules to run: `lab run -m lab.training.wine`.

The names load when they are asked for: `lab ckpt` needs what is here of checkpoints without torch.
"""

from typing import TYPE_CHECKING

from lab.lazy import lazily

if TYPE_CHECKING:
    from lab.training.checkpoints import Checkpoints
    from lab.training.data import Split, wine_split
    from lab.training.options import Options
    from lab.training.trainer import Trainer
    from lab.training.world import World, join_world

__all__ = [
    "Checkpoints",
    "Options",
    "Split",
    "Trainer",
    "World",
    "join_world",
    "wine_split",
]

__getattr__, __dir__ = lazily(
    globals(),
    {
        "Checkpoints": "lab.training.checkpoints",
        **dict.fromkeys(("Split", "wine_split"), "lab.training.data"),
        "Options": "lab.training.options",
        "Trainer": "lab.training.trainer",
        **dict.fromkeys(("World", "join_world"), "lab.training.world"),
    },
)
