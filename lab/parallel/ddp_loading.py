"""Hooks with which a DistributedDataParallel inside another module loads the bare keys."""

from collections.abc import Iterable
from typing import Any

from torch import nn


def is_torchs(state: Iterable[str], prefix: str, module: nn.Module) -> bool:
    """Whether all keys after the prefix begin with `module.`, and not because the model's do."""
    keys = [key.removeprefix(prefix) for key in state if key.startswith(prefix)]
    own = any(name == "module" for name, _ in module.named_children())
    return bool(keys) and not own and all(key.startswith("module.") for key in keys)


def before_load(model: Any, state: dict[str, Any], prefix: str, *others: Any) -> None:
    """Look for the keys under the module's name inside the wrapper."""
    model._loading = prefix, others[-1]
    if is_torchs(state, prefix, model.module):
        return
    for key in [key for key in state if key.startswith(prefix)]:
        state[f"{prefix}module.{key[len(prefix) :]}"] = state.pop(key)


def after_load(model: Any, incompatible: Any) -> None:
    """Messages name the keys that `state_dict` gives."""
    prefix, errors = model._loading
    for texts in (incompatible.missing_keys, incompatible.unexpected_keys, errors):
        texts[:] = [text.replace(f"{prefix}module.", prefix) for text in texts]
