"""How many bytes of tensors live at once."""

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


def storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the memory behind tensors, which views share; of a DTensor this rank's part."""
    storages = {id(s): s for s in (local(tensor).untyped_storage() for tensor in tensors)}
    return sum(storage.nbytes() for storage in storages.values())


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor; any other tensor itself."""
    to_local: Callable[[], Tensor] | None = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


class LiveBytes(TorchDispatchMode):
    """Watches all operators inside `with`, collectives included, and the memory they leave.

    It counts the storages that any operator has read or made and that still live, after each
    operator. A storage that is resized to nothing, as FSDP2 does it, counts nothing. The mode is
    PyTorch's way to see every operator (torch/utils/_python_dispatch.py).
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's has no types
        self.peak = 0
        """The most bytes so far."""
        self._storages: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the operator, then count."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, Tensor):
                storage = local(leaf).untyped_storage()
                self._storages[id(storage)] = weakref.ref(storage)
        self.peak = max(self.peak, self.live())
        return result

    def live(self) -> int:
        """Bytes now."""
        storages = [reference() for reference in self._storages.values()]
        return sum(storage.nbytes() for storage in storages if storage is not None)
