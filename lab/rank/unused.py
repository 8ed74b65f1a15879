"""Which parameters of a replicated model got no gradient: DDP waits for them in vain.

The models are those that the script's own functions have at hand. Nothing is imported here: a
script that has not imported torch has none.
"""

import sys
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from .frames import is_users

CLASSES = (
    ("torch.nn.parallel.distributed", "DistributedDataParallel"),
    ("lab.parallel.ddp", "DistributedDataParallel"),
)
MOST = 64
"""How many names are told."""


def unused(frames: Iterable[FrameType]) -> list[str]:
    """Names of parameters that need a gradient and have none, while others of the model have one.

    Args:
        frames: a stack; variables of the user's functions on it, and attributes of what they hold,
            are looked at.
    """
    classes = tuple(
        found
        for module, name in CLASSES
        if (found := getattr(sys.modules.get(module), name, None)) is not None
    )
    if not classes:
        return []
    names: dict[str, None] = {}
    for model in _models(frames, classes):
        module = getattr(model, "module", None)  # it may be half made
        if module is None:
            continue
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        without = [name for name, parameter in trained if parameter.grad is None]
        if len(without) < len(trained):
            names.update(dict.fromkeys(without))
    return list(names)[:MOST]


def _models(frames: Iterable[FrameType], classes: tuple[type, ...]) -> Iterator[Any]:
    seen = set()
    for frame in frames:
        if not is_users(frame.f_code.co_filename):
            continue
        for value in list(frame.f_locals.values()):
            for candidate in (value, *_attributes(value)):
                # By the type: `isinstance` asks the object, which may be a proxy that does things.
                if issubclass(type(candidate), classes) and id(candidate) not in seen:
                    seen.add(id(candidate))
                    yield candidate


def _attributes(value: Any) -> list[Any]:
    """Of an object of a class of the script's, such as a trainer."""
    # A class may have made a property of it.
    if str(type(value).__module__).partition(".")[0] in ("torch", "builtins"):
        return []
    try:
        return list(object.__getattribute__(value, "__dict__").values())
    except AttributeError:
        return []
