"""The states of a process's random generators: with them, the same is drawn again."""

import random
import sys
from typing import Any

import torch


def random_states() -> dict[str, Any]:
    """Python's, torch's (of the current GPU too, if any) and NumPy's, as plain data."""
    states: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    if "numpy" in sys.modules:
        import numpy as np

        state: Any = np.random.get_state(legacy=False)
        states["numpy"] = {
            **state,
            "state": {**state["state"], "key": state["state"]["key"].tolist()},
        }
    return states


def restore_random_states(states: dict[str, Any]) -> None:
    """Go on drawing from there."""
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
    if "numpy" in states:
        import numpy as np

        np.random.set_state(states["numpy"])
