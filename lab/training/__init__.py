"""Training jobs and their parts. The jobs are modules to run: `lab run -m lab.training.wine`."""

from lab.training.checkpoint import load_checkpoint, save_checkpoint
from lab.training.data import Split, wine_split
from lab.training.world import World, join_world

__all__ = ["Split", "World", "join_world", "load_checkpoint", "save_checkpoint", "wine_split"]
