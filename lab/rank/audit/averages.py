"""Whose weights are put together by hand after their steps: local SGD, federated rounds, soups."""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

from .forwards import tensors_of
from .hooks import Hooks

OBJECTS = {"all_gather_object": ("obj", 1), "gather_object": ("obj", 0)}
"""What sends objects: the name and the place of its argument."""

Shapes = Counter[tuple[int, ...]]


def shapes_of(tensors: Iterable[Tensor]) -> Shapes:
    """How many there are of each shape."""
    return Counter(tuple(one.shape) for one in tensors)


class Averages:
    """Watches what is sent between an optimizer's step and the next backward.

    By its shapes: it is a copy most often (a state_dict, a part that is weighted), and the
    optimizer may be gone by then, and with it whatever it has stepped.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._recorder = hooks.recorder
        self._stepped: dict[int, Shapes] = {}
        """By number: optimizers that have stepped since the last backward began."""
        self._sent: Shapes = Counter()
        """Since the last of them."""
        self._told: set[int] = set()
        hooks.before_backward.append(lambda _: self._stepped.clear())
        for name, (argument, place) in OBJECTS.items():
            self._watch_objects(hooks, name, argument, place)

    def _watch_objects(self, hooks: Hooks, name: str, argument: str, place: int) -> None:
        def before(*args: Any, **kwargs: Any) -> None:
            sent = kwargs.get(argument, args[place] if place < len(args) else None)
            hooks.tell([self.sent], list(tensors_of(sent)))

        hooks.wrap(distributed_c10d, name, before=before)
        setattr(dist, name, getattr(distributed_c10d, name))

    def stepped(self, optimizer: int, shapes: Shapes) -> None:
        """An optimizer steps parameters of these shapes."""
        self._sent.clear()
        if optimizer not in self._told:
            self._stepped[optimizer] = shapes

    def want(self, tensor: Tensor) -> bool:
        """Whether it may be one of the weights, or all of them, of what has stepped."""
        shape = tuple(tensor.shape)
        whole = [_size(shapes) for shapes in self._stepped.values()]
        return shape in whole or any(shape in shapes for shapes in self._stepped.values())

    def sent(self, tensors: Iterable[Tensor]) -> None:
        """These are on their way, none of them a gradient, and ranks may put them together."""
        self._sent += shapes_of(tensors)
        whole = [n for n, shapes in self._stepped.items() if self._holds(shapes)]
        if whole:
            self._told.update(whole)
            self._recorder.record("averaged", optimizers=whole)
            for number in whole:
                del self._stepped[number]

    def _holds(self, shapes: Shapes) -> bool:
        """Whether all of them were sent, one by one or in one row."""
        return shapes <= self._sent or _size(shapes) in self._sent


def _size(shapes: Shapes) -> tuple[int]:
    """The shape of all of them in one row."""
    return (sum(math.prod(shape) * count for shape, count in shapes.items()),)
