"""Buckets: the gradients of several parameters in one flat tensor, so that they travel together.

A message costs time by itself, so many small gradients are sent as few large buckets; yet a bucket
can only leave when its last gradient is there, so not too large. Backward makes gradients roughly
from the last layer to the first, hence buckets are filled in the reverse order of registration.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

MEBIBYTE = 1024 * 1024

BUCKETS = 16
"""How many `default_cap_mb` aims at."""
SMALLEST_MB, LARGEST_MB = 3.0, 25.0
"""Below, messages cost more than overlap gains; from there on larger ones gain nothing."""


class Bucket:
    """Gradients of one dtype on one device, as views of one flat buffer.

    What communication hooks get. Its methods are those of torch's `dist.GradBucket`, so that hooks
    written for torch's DDP work with it.
    """

    def __init__(
        self,
        index: int,
        members: Sequence[tuple[int, nn.Parameter]],
        last: bool,
        starts: Sequence[int] | None = None,
        length: int | None = None,
    ) -> None:
        """Lay the members out.

        Args:
            index: place in the order in which buckets are sent.
            members: (number of the parameter, parameter), all of one dtype and device.
            last: whether it is the last to be sent.
            starts: where in the buffer each member begins. Default: one after another.
            length: elements of the buffer, where there are to be more than the members'.
        """
        self.numbers = [number for number, _ in members]
        self._index = index
        self._parameters = [parameter for _, parameter in members]
        self._last = last
        first = self._parameters[0]
        sizes = [parameter.numel() for parameter in self._parameters]
        if starts is None:
            starts = list(accumulate(sizes, initial=0))[:-1]
        total = sum(sizes) if length is None else length
        self._buffer = torch.zeros(total, dtype=first.dtype, device=first.device)
        self._views = [
            _like(self._buffer[start : start + parameter.numel()], parameter)
            for start, parameter in zip(starts, self._parameters, strict=True)
        ]
        self.present: list[int] = []
        """Numbers of the parameters that had a gradient when they were last packed."""

    def index(self) -> int:
        """Place in the order in which buckets are sent."""
        return self._index

    def is_last(self) -> bool:
        """Whether it is the last of a backward."""
        return self._last

    def buffer(self) -> Tensor:
        """All gradients one after another, [total number of elements]."""
        return self._buffer

    def set_buffer(self, buffer: Tensor) -> None:
        """Overwrite all gradients with those in `buffer`, [total number of elements]."""
        if buffer.data_ptr() != self._buffer.data_ptr():
            self._buffer.copy_(buffer)

    def parameters(self) -> list[Tensor]:
        """Whose gradients these are."""
        return list(self._parameters)

    def gradients(self) -> list[Tensor]:
        """The buffer as one view for each parameter, of its shape and memory layout."""
        return list(self._views)

    def pack(self) -> None:
        """Move the parameters' gradients into the buffer, and make `grad` a view of it.

        A gradient that is a view already is where it belongs. A missing one counts as zeros, and
        stays None.
        """
        views, gradients = [], []
        self.present = []
        for number, parameter, view in zip(
            self.numbers, self._parameters, self._views, strict=True
        ):
            if parameter.grad is None:
                view.zero_()
                continue
            self.present.append(number)
            if parameter.grad is not view:
                views.append(view)
                gradients.append(parameter.grad.detach())
                parameter.grad = view
        if views:
            torch._foreach_copy_(views, gradients)

    def unpack(self, used: Sequence[bool] | None = None) -> None:
        """Give each parameter its view as gradient.

        Args:
            used: by number of the parameter; where False a missing gradient stays missing.
        """
        for number, parameter, view in zip(
            self.numbers, self._parameters, self._views, strict=True
        ):
            if parameter.grad is None and (used is None or used[number]):
                parameter.grad = view

    def clear(self) -> None:
        """`zero_grad` was called. Gradients are the parameters' own here: nothing to do."""


def default_cap_mb(parameters: Sequence[nn.Parameter]) -> float:
    """MiB for a bucket where the user has no opinion: a 16th of the gradients, from 3 to 25.

    Torch's default is 25 after a first bucket of 1. A model of 18 MiB then has next to no overlap,
    for its gradients travel when backward has ended. Buckets of 2 gain some more where the link has
    1 Gbit, and cost a tenth of a step where it is fast (`lab bench ddp --only step`).
    """
    total = sum(parameter.nbytes for parameter in parameters) / MEBIBYTE
    return min(max(total / BUCKETS, SMALLEST_MB), LARGEST_MB)


def make_buckets(parameters: Sequence[nn.Parameter], bucket_cap_mb: float) -> list[Bucket]:
    """Buckets for parameters, in the order in which they are to be sent: see `divide`."""
    divided = divide(list(enumerate(parameters)), bucket_cap_mb)
    return [
        Bucket(index, members, last=index == len(divided) - 1)
        for index, members in enumerate(divided)
    ]


def divide(
    numbered: Sequence[tuple[int, nn.Parameter]], bucket_cap_mb: float
) -> list[list[tuple[int, nn.Parameter]]]:
    """Divide parameters into what travels together, in the order in which that is to be sent.

    Args:
        numbered: (number, parameter) in the order of registration.
        bucket_cap_mb: MiB from which on a bucket is closed, so its last gradient may exceed it, as
            in torch. 0: a bucket for each parameter.

    Returns:
        Members of one dtype and device each. A bucket comes where its last parameter comes in the
        reverse order of registration: then all that is in earlier buckets is expected earlier.

    Raises:
        ValueError: the cap is negative or not a number.
    """
    if not bucket_cap_mb >= 0:
        raise ValueError(f"bucket_cap_mb must be at least 0, found {bucket_cap_mb}")
    cap = bucket_cap_mb * MEBIBYTE
    closed: list[list[tuple[int, nn.Parameter]]] = []
    still_open: dict[tuple[torch.dtype, torch.device], list[tuple[int, nn.Parameter]]] = {}
    sizes: Counter[tuple[torch.dtype, torch.device]] = Counter()
    for number, parameter in reversed(numbered):
        kind = parameter.dtype, parameter.device
        still_open.setdefault(kind, []).append((number, parameter))
        sizes[kind] += parameter.nbytes
        if sizes[kind] >= cap:
            closed.append(still_open.pop(kind))
            sizes[kind] = 0
    closed += still_open.values()
    closed.sort(key=lambda members: -members[-1][0])
    return closed


def _like(part: Tensor, parameter: Tensor) -> Tensor:
    """A flat part as a view of the parameter's shape, and of its strides where they are dense.

    Gradients laid out as their parameter (channels_last, say) save the optimiser a slow path.
    """
    return part.as_strided(parameter.shape, torch.empty_like(parameter, device="meta").stride())
