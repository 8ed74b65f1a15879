"""What the collectives of `collectives.py` are made of: messages, and the parts of a tensor."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise

import torch.distributed as dist
from torch import Tensor

DEADLINE = timedelta(minutes=5)
"""Of one message, unless the caller says otherwise."""


@dataclass(frozen=True)
class Traffic:
    """What one rank sent and received in one call. Bytes of tensors, without any protocol's own."""

    sent_bytes: int
    received_bytes: int
    rounds: int
    """Times that this rank waited for messages, one after another."""


@dataclass
class Wire:
    """The messages of one call: sends, receives, counts and keeps to the deadline."""

    group: dist.ProcessGroup | None
    deadline: timedelta
    rank: int = field(init=False)
    size: int = field(init=False)
    sent_bytes: int = field(default=0, init=False)
    received_bytes: int = field(default=0, init=False)
    rounds: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.rank = dist.get_rank(self.group)
        self.size = dist.get_world_size(self.group)

    def exchange(
        self, sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[Tensor, int]]
    ) -> None:
        """Send and receive all of (tensor, rank within the group) at once, and wait for all.

        At once, because a send may wait for its receiver: in a ring all would wait for each other.

        Raises:
            RuntimeError: one did not come within the deadline, or the peer is gone.
        """
        self.post(sends, receives)()

    def post(
        self, sends: Sequence[tuple[Tensor, int]], receives: Sequence[tuple[Tensor, int]]
    ) -> Callable[[], None]:
        """Begin an exchange; the function that is returned waits for its end, and raises as above.

        The tensors must be left alone until then. Between two ranks messages arrive in the order in
        which they were posted.
        """
        # Both sides know the sizes, so what has no bytes need not travel.
        operations = [
            dist.P2POp(verb, tensor, group=self.group, group_peer=peer)
            for verb, messages in ((dist.irecv, receives), (dist.isend, sends))
            for tensor, peer in messages
            if tensor.numel()
        ]
        if not operations:
            return lambda: None
        self.rounds += 1
        self.sent_bytes += sum(tensor.nbytes for tensor, _ in sends)
        self.received_bytes += sum(tensor.nbytes for tensor, _ in receives)
        works = dist.batch_isend_irecv(operations)
        peers = sorted({peer for _, peer in (*sends, *receives)})
        return lambda: self._wait(works, peers)

    def _wait(self, works: Sequence[dist.Work], peers: Sequence[int]) -> None:
        for work in works:
            try:
                work.wait(self.deadline)
            except RuntimeError as error:
                raise RuntimeError(
                    f"rank {self.rank} of {self.size}: no message to or from rank "
                    f"{' or '.join(map(str, peers))} within {self.deadline.total_seconds():g} s, "
                    f"or it is gone: {error}"
                ) from error

    @property
    def traffic(self) -> Traffic:
        """Of all exchanges so far."""
        return Traffic(self.sent_bytes, self.received_bytes, self.rounds)


def flat_view(tensor: Tensor) -> Tensor:
    """The same memory as [numel]."""
    if not tensor.is_contiguous():
        raise ValueError("the tensor must be contiguous: call contiguous() first")
    return tensor.detach().view(-1)


def split_evenly(flat: Tensor, count: int) -> list[Tensor]:
    """`count` views of a flat tensor that cover it, of sizes as equal as can be."""
    bounds = [len(flat) * number // count for number in range(count + 1)]
    return [flat[start:end] for start, end in pairwise(bounds)]


def parts_of(whole: Tensor, part: Tensor, count: int) -> list[Tensor]:
    """The views of `whole` that are the size of `part`."""
    if whole.dtype != part.dtype or whole.numel() != count * part.numel():
        raise ValueError(
            f"{count} parts of {part.numel()} {part.dtype} do not make "
            f"{whole.numel()} {whole.dtype}"
        )
    return split_evenly(flat_view(whole), count)
