"""What CUDA asks for beyond what the CPU needs.

On a GPU a call returns when its work has been put into a stream, and streams run side by side
unless one is told to wait for another. The backend nccl has a stream of its own: a collective waits
there for what the current stream has to do, and its `wait()` makes the current stream, not the
process, wait for it. That orders all that happens on one stream. Two things remain, and they are
here; the rest of lab.parallel does not ask where tensors are.

Sources: torch's notes on CUDA semantics, "CUDA streams" and "stream semantics of backward passes";
torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp.
"""

from typing import Any, Protocol

import torch
from torch import Tensor


class GradientStreams(Protocol):
    """The streams on which backward wrote the gradients of a bucket."""

    def note(self) -> None:
        """A gradient was written on the current stream."""
        ...

    def join(self) -> None:
        """The current stream waits for all that were noted."""
        ...


def gradient_streams(device: torch.device) -> GradientStreams:
    """For gradients on this device."""
    return CudaStreams(device) if device.type == "cuda" else NoStreams()


class NoStreams:
    """The CPU does one thing after another."""

    def note(self) -> None:
        """Nothing to do."""

    def join(self) -> None:
        """Nothing to do."""


class CudaStreams:
    """Backward runs each operation on the stream of its forward, and models may use several."""

    def __init__(self, device: torch.device, cuda: Any = torch.cuda) -> None:
        """For one device.

        Args:
            device: of the gradients.
            cuda: what has `current_stream`; another one in tests.
        """
        self._device, self._cuda = device, cuda
        self._noted: list[Any] = []

    def note(self) -> None:
        """A gradient was written on the current stream."""
        stream = self._cuda.current_stream(self._device)
        if stream not in self._noted:
            self._noted.append(stream)

    def join(self) -> None:
        """The current stream waits for all others that were noted since it last did."""
        current = self._cuda.current_stream(self._device)
        for stream in self._noted:
            if stream != current:
                current.wait_stream(stream)
        self._noted.clear()


def used_on_current_stream(tensor: Tensor, cuda: Any = torch.cuda) -> None:
    """Keep a tensor's memory from others until the current stream has done what it was told.

    For tensors that were made on another stream, as those are that a hook makes in backward and
    that are needed after it: their memory would go back to that other stream's pool, which knows
    nothing of this one.
    """
    if tensor.is_cuda:
        tensor.record_stream(cuda.current_stream(tensor.device))
