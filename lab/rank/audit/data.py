"""What the ranks train on: by the contents of batches, and by the loaders' indices."""

from .batches import Batches
from .forwards import Forwards
from .hooks import Hooks
from .loaders import Loaders


def install(hooks: Hooks) -> None:
    """Listen to loaders and to calls of models."""
    Batches(hooks, Forwards(hooks), Loaders(hooks))
