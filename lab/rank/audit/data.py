"""What the ranks train on, and what they draw by chance: all that listens to calls of models."""

from .batches import Batches
from .chance import Noise, Splits
from .forwards import Forwards
from .hooks import Hooks
from .loaders import Loaders
from .modes import Modes
from .pace import Pace
from .reports import Reports


def install(hooks: Hooks) -> None:
    """Listen to loaders, to calls of models and to `random_split`."""
    forwards = Forwards(hooks)
    loaders = Loaders(hooks)
    Batches(hooks, forwards, loaders)
    Noise(hooks, forwards)
    Modes(hooks, forwards)
    Splits(hooks)
    Reports(hooks, forwards)
    Pace(hooks, forwards, loaders)
