"""What a forward returned, and which parameters it depends on."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in nested lists, tuples, mappings and dataclasses."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from tensors_in(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from tensors_in(item)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from tensors_in(getattr(value, field.name))


def moved_to(device: torch.device, value: Any) -> Any:
    """The same lists, tuples and dicts with all tensors on the device."""
    return _mapped(lambda tensor: tensor.to(device, non_blocking=True), value)


def converted_to(dtype: torch.dtype, value: Any) -> Any:
    """The same lists, tuples and dicts with all floating tensors in the dtype."""
    return _mapped(lambda tensor: tensor.to(dtype) if tensor.is_floating_point() else tensor, value)


def _mapped(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_mapped(function, item) for item in value))
    if type(value) in (list, tuple):
        return type(value)(_mapped(function, item) for item in value)
    if type(value) is dict:
        return {key: _mapped(function, item) for key, item in value.items()}
    return value


def leaves_of(outputs: Iterable[Tensor]) -> set[Tensor] | None:
    """The tensors that a backward from these outputs would give a gradient.

    Returns:
        None where the graph does not show all: reentrant checkpointing builds its part of the
        graph only during backward (torch/utils/checkpoint.py, CheckpointFunction).
    """
    found: set[Tensor] = set()
    outputs = list(outputs)
    found.update(output for output in outputs if output.is_leaf and output.requires_grad)
    nodes = [output.grad_fn for output in outputs if output.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node.name() == "CheckpointFunctionBackward":
            return None
        if node.name() == "torch::autograd::AccumulateGrad":
            found.add(node.variable)  # type: ignore[attr-defined]  # this kind of node has it
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                nodes.append(following)
    return found
