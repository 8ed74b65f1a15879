"""An all-to-all in little memory: what comes lies where what was sent has been.

Each of N ranks has a part for every other and gets one from each. In round d, rank r sends the part
of rank r + d and receives from rank r - d, so each round gives everybody one part for another. The
first rounds, WINDOW of them, are under way at once and need memory of their own to receive in; each
further one takes the place of a part that has been sent. So an exchange of S bytes needs S and
WINDOW / N S, where an all-to-all from one tensor into another needs 2 S.

Up to WINDOW + 1 ranks everything is under way from the beginning, as in any other all-to-all. Among
more the caller says `go_on` now and then, or it waits for the rest at the end.
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
            parts: [N, length], contiguous; row r is for rank r. Given up: it is overwritten.
            group: the ranks.
        """
        self._group = group
        self._size, self._rank = dist.get_world_size(group), dist.get_rank(group)
        spare = parts.new_empty(min(WINDOW, self._size - 1), parts.shape[1])
        self.nbytes = parts.nbytes + spare.nbytes
        """Of all its memory."""
        self._free = deque(spare.unbind())
        self._rows = parts.unbind()
        self._theirs = list(self._rows)
        self._rounds = 0
        self._under_way: deque[tuple[list[dist.Work], Tensor]] = deque()
        # nccl does one round after another by itself, and its `wait` would hold up computing.
        self._in_order = parts.is_cuda
        self._waits: list[dist.Work] = []
        self.go_on(1.0 if self._in_order else 0.0)

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
        return self._theirs

    def _begin(self) -> None:
        self._rounds += 1
        to = (self._rank + self._rounds) % self._size
        source = (self._rank - self._rounds) % self._size
        sent, place = self._rows[to], self._free.popleft()
        self._theirs[source] = place
        # As bytes: backends do not know all dtypes.
        messages = [
            dist.P2POp(verb, tensor.view(torch.uint8), group=self._group, group_peer=peer, tag=TAG)
            for verb, tensor, peer in ((dist.irecv, place, source), (dist.isend, sent, to))
        ]
        self._under_way.append((dist.batch_isend_irecv(messages), sent))

    def _end_oldest(self) -> None:
        works, sent = self._under_way.popleft()
        if self._in_order:
            self._waits += works
        else:
            for work in works:
                work.wait()
        self._free.append(sent)
