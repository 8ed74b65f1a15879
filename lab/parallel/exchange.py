"""An all-to-all in little memory: what comes lies where what was sent has been.

Each of N ranks has a part for every other and gets one from each. In round d, rank r sends the part
of rank r + d and receives from rank r - d, so each round gives everybody one part for another. The
first rounds, WINDOW of them, are one all-to-all that needs memory of its own to receive in; each
further one takes the place of a part that has been sent. So an exchange of S bytes needs S and
WINDOW / N S, where an all-to-all from one tensor into another needs 2 S.

Up to WINDOW + 1 ranks everything is under way from the beginning, as in any other all-to-all. Among
more the caller says `go_on` now and then, or it waits for the rest at the end. Those rounds are
messages from rank to rank, which need no place in the order of the collectives as the first has.
"""

from collections import deque

import torch
import torch.distributed as dist
from torch import Tensor

WINDOW = 3
"""Rounds under way at once. As many parts as FSDP has room for: while a unit's gradients are on
their way, the shards of its own gradients and of the next two units' are still to come."""

TAG = 4253
"""Of the messages, so that a script's own between the same ranks are not taken for these."""


class Exchange:
    """One that is under way. The ranks' calls to begin, go on and finish have one order."""

    def __init__(self, parts: Tensor, group: dist.ProcessGroup | None) -> None:
        """Begin to send. A collective, in the background.

        Args:
            parts: [N, length], contiguous; row r is for rank r.
            group: the ranks.
        """
        self._group = group
        self._size, self._rank = dist.get_world_size(group), dist.get_rank(group)
        self._rounds = min(WINDOW, self._size - 1)
        first = range(1, self._rounds + 1)
        to = sorted((self._rank + distance) % self._size for distance in first)
        sources = sorted((self._rank - distance) % self._size for distance in first)
        # In the order of sending: an all-to-all takes what it sends from one place.
        rest = [rank for rank in range(self._size) if rank not in to]
        rows = parts[[*to, *rest]]
        spare = parts.new_empty(self._rounds, parts.shape[1])
        self.nbytes = rows.nbytes + spare.nbytes
        """Of all its memory."""
        self._memory = rows, spare
        self._rows = dict(zip([*to, *rest], rows.unbind(), strict=True))
        self._theirs = {self._rank: self._rows[self._rank]}
        self._theirs |= dict(zip(sources, spare.unbind(), strict=True))
        self._free: deque[Tensor] = deque()
        # nccl does one round after another by itself, and its `wait` would hold up computing.
        self._in_order = parts.is_cuda
        self._waits: list[dist.Work] = []
        # As bytes: backends do not know all dtypes.
        work = dist.all_to_all_single(
            spare.view(torch.uint8).flatten(),
            rows[: self._rounds].view(torch.uint8).flatten(),
            self._splits(sources, rows[0].nbytes),
            self._splits(to, rows[0].nbytes),
            group=group,
            async_op=True,
        )
        self._under_way: deque[tuple[list[dist.Work], list[Tensor]]] = deque()
        self._under_way.append(([work], [self._rows[rank] for rank in to]))
        self.go_on(1.0 if self._in_order else 0.0)

    def _splits(self, ranks: list[int], nbytes: int) -> list[int]:
        return [nbytes if rank in ranks else 0 for rank in range(self._size)]

    def go_on(self, share: float) -> None:
        """Have a share of the rounds begun that need the place of earlier ones, and wait for those.

        From 0 to 1. A rank with a larger share than another's waits until the other goes on.
        """
        waiting = max(0, self._size - 1 - WINDOW)
        rounds = min(WINDOW, self._size - 1) + int(share * waiting)
        while self._rounds < rounds:
            if not self._free:
                self._end_oldest()
            self._begin()

    def finish(self) -> list[Tensor]:
        """Wait for the rest: [length] from each rank, its own among them, in rank order."""
        self.go_on(1.0)
        while self._under_way:
            self._end_oldest()
        for work in self._waits:
            work.wait()
        return [self._theirs[rank] for rank in range(self._size)]

    def release(self) -> None:
        """Give the memory back, with what `finish` gave: gloo's threads may hold it for a while."""
        for tensor in self._memory:
            tensor.untyped_storage().resize_(0)

    def _begin(self) -> None:
        self._rounds += 1
        to = (self._rank + self._rounds) % self._size
        source = (self._rank - self._rounds) % self._size
        sent, place = self._rows[to], self._free.popleft()
        self._theirs[source] = place
        messages = [
            dist.P2POp(verb, tensor.view(torch.uint8), group=self._group, group_peer=peer, tag=TAG)
            for verb, tensor, peer in ((dist.irecv, place, source), (dist.isend, sent, to))
        ]
        self._under_way.append((dist.batch_isend_irecv(messages), [sent]))

    def _end_oldest(self) -> None:
        works, sent = self._under_way.popleft()
        if self._in_order:
            self._waits += works
        else:
            for work in works:
                work.wait()
        self._free += sent
