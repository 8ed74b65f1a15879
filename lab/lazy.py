"""Names that a package offers and loads when they are asked for (PEP 562)."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazily(
    package: Mapping[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's `__getattr__` and `__dir__`, of its `globals()` and the module of each name."""

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package['__name__']!r} has no attribute {name!r}")
        return getattr(import_module(homes[name]), name)

    return load, lambda: sorted({*package, *homes})
