"""How much this process has sent to each rank in the newest all-to-alls, and expected of each.

The flight recorder has the tensors of the call, but not how they are split; and of a rank that gloo
has aborted there is nothing, so that only the others tell whose splits did not fit.
"""

import contextlib
import functools
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from .imports import C10D, after_import, replace

NEWEST = 8
"""How many are told of, of each group."""

Sizes = list[int]
"""Bytes, for each rank of the group."""

_calls: dict[str, int] = {}
"""By group: how many it has begun."""
_newest: dict[str, deque[dict[str, Any]]] = {}


def watch() -> None:
    """Note them from when the script imports torch.distributed."""
    after_import(C10D, _wrap)


def told() -> list[dict[str, Any]]:
    """Of each: `group`, `number` (among those of the group, from 1), `sent` and `expected`.

    Both are bytes, for each rank of the group in its order.
    """
    return [one for calls in list(_newest.values()) for one in list(calls)]


def _wrap() -> None:
    for name, sizes in (("all_to_all_single", _of_splits), ("all_to_all", _of_lists)):
        function = getattr(sys.modules[C10D], name, None)
        if function is not None:
            replace(name, _noting(function, sizes))


def _noting(
    function: Callable[..., Any], sizes: Callable[..., tuple[Any, Sizes, Sizes]]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with contextlib.suppress(Exception):  # what is wrong with it torch itself will say
            _note(*sizes(*args, **kwargs))
        return function(*args, **kwargs)

    return wrapped


def _note(group: Any, expected: Sizes, sent: Sizes) -> None:
    c10d: Any = sys.modules[C10D]
    group = c10d._world.default_pg if group is None else group
    name: str = group.group_name
    number = _calls[name] = _calls.get(name, 0) + 1
    one = {"group": name, "number": number, "sent": sent, "expected": expected}
    _newest.setdefault(name, deque(maxlen=NEWEST)).append(one)


def _of_splits(
    output: Any,
    input: Any,  # noqa: A002 - as torch names it
    output_split_sizes: Any = None,
    input_split_sizes: Any = None,
    group: Any = None,
    async_op: bool = False,  # noqa: ARG001
) -> tuple[Any, Sizes, Sizes]:
    return group, _split(output, output_split_sizes, group), _split(input, input_split_sizes, group)


def _split(tensor: Any, sizes: Any, group: Any) -> Sizes:
    if not sizes:
        c10d: Any = sys.modules[C10D]
        size = c10d.get_world_size(group)
        return [tensor.nbytes // size] * size
    rows = tensor.shape[0]
    row = tensor.nbytes // rows if rows else 0
    return [int(one) * row for one in sizes]


def _of_lists(
    output_tensor_list: Any,
    input_tensor_list: Any,
    group: Any = None,
    async_op: bool = False,  # noqa: ARG001
) -> tuple[Any, Sizes, Sizes]:
    return (
        group,
        [one.nbytes for one in output_tensor_list],
        [one.nbytes for one in input_tensor_list],
    )
