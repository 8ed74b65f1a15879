"""Being told when the script has imported a module, without importing it ourselves."""

import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

C10D = "torch.distributed.distributed_c10d"
"""Where the functions of torch.distributed are."""


def after_import(name: str, then: Callable[[], None]) -> None:
    """Call `then` once the module `name` has been imported: at once where it is there already."""
    if name in sys.modules:
        then()
        return
    for finder in sys.meta_path:
        if isinstance(finder, _Watcher) and finder.name == name:
            finder.then.append(then)
            return
    sys.meta_path.insert(0, _Watcher(name, then))


def replace(name: str, function: Callable[..., Any]) -> None:
    """Put another function of torch.distributed in the place of that one."""
    for module in (sys.modules[C10D], sys.modules.get("torch.distributed")):
        if hasattr(module, name):
            setattr(module, name, function)


class _Watcher:
    """A finder that finds what the others do, and adds calls after the module's execution."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name = name
        self.then = [then]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._watch(spec)
                return spec
        return None

    def _watch(self, spec: importlib.machinery.ModuleSpec) -> None:
        loader = spec.loader
        if loader is None:
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # the loader that anybody finds later is as it was
            execute(module)
            for then in self.then:
                then()

        loader.exec_module = exec_module  # type: ignore[method-assign]
