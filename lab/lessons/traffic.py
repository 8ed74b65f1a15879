"""Bytes that come over the wire, as the kernel counts them, beside theory."""

from collections.abc import Callable

import torch.distributed as dist

from lab.lessons.notebook import Notebook
from lab.prove.resources import WIRE_TOLERANCE
from lab.prove.wire import received_bytes


def bytes_received(notebook: Notebook, call: Callable[[], object]) -> int | None:
    """By this rank in a call, which all ranks make; None where nobody counts them.

    gloo's connections are counted on Linux. nccl has ways that are no connections.
    """
    dist.barrier()
    before = received_bytes()
    dist.barrier()  # nobody sends while others read
    call()
    after = received_bytes()
    if before is None or after is None or notebook.world.backend != "gloo":
        return None
    return after - before


def expect_received(notebook: Notebook, what: str, received: int | None, theory: float) -> None:
    """The bytes are theory's, but for the headers of messages. Shown where nobody counts them."""
    if received is None:
        notebook.show(what, "unknown", round(theory))
        return
    close = abs(received - theory) <= WIRE_TOLERANCE * theory
    notebook.judge(what, close, received, f"{theory:.0f} and headers")
