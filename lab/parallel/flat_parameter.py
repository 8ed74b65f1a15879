"""A flat parameter: parameters of one unit in one flat tensor, of which each rank keeps one N-th.

    parameters   [3, 2] [3] [5]         flatten
    full         a a a a a a b b b c c c c c 0 0     and pad with zeros to a multiple of N
    shard        rank 0's    | rank 1's              slice: all that a rank keeps

`gather` fetches the other shards into `full`, whose views are the parameters that a forward sees;
`free` gives the memory back. Their gradients are collected as backward makes them. `reduce` puts
them into a tensor of the same layout and gives each rank the sum of its N-th: an all-to-all, then a
sum in rank order, so that it is bitwise what one process gets that accumulates the ranks' batches
one after another.

A whole unit of gradients is there twice at most: what is on its way, while backward makes the next
unit's. What comes in takes the place of what has left (`exchange.py`).

On the wire each of both moves (N-1)/N of the full tensor per rank. gloo's own reduce-scatter is an
all-reduce, which moves twice as much.

Sources: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023,
https://arxiv.org/abs/2304.11277, and torch/distributed/fsdp/_flat_param.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lab.parallel.exchange import Exchange
from lab.parallel.layout import in_memory_order, lay_out
from lab.parallel.meter import Meter
from lab.parallel.ordered import sum_in_rank_order


@dataclass
class Slot:
    """One parameter's place in the flat tensor."""

    name: str
    """Within the unit."""
    owners: list[tuple[nn.Module, str]]
    """Where modules hold it: several for tied weights."""
    shape: torch.Size
    stride: tuple[int, ...]
    start: int
    """First element within the full tensor."""
    sharded: nn.Parameter
    """[elements of it in this rank's shard], maybe none: what the optimiser sees. The object that
    the module had at first."""
    place: slice = field(default_factory=lambda: slice(0, 0))
    """Of these within the shard."""
    aliases: list[str] = field(default_factory=list)
    """Further names, of tied weights."""
    offset: int = 0
    """Of the first of these within the parameter."""
    unsharded: nn.Parameter = field(init=False)
    """[shape], a view of the full tensor: what forward sees."""

    def view(self, full: Tensor) -> Tensor:
        """This parameter's part of a tensor of the full layout, in its shape and memory order."""
        return full.as_strided(self.shape, self.stride, self.start)


class FlatParameter:
    """Parameters of one dtype and device, which all need gradients or all do not."""

    def __init__(
        self,
        slots: Sequence[Slot],
        group: dist.ProcessGroup | None,
        *,
        compute_dtype: torch.dtype,
        reduce_dtype: torch.dtype,
        offload: bool,
        meter: Meter,
    ) -> None:
        """Keep this rank's part of the parameters; the rest of their memory is given back.

        Args:
            slots: with whole parameters as `sharded`, which become parts here.
            group: the ranks that share them.
            compute_dtype: of the full tensor, and on the wire.
            reduce_dtype: of gradients on the wire.
            offload: keep the shard on the CPU.
            meter: counts bytes.
        """
        self.slots = list(slots)
        self.group = group
        self.size, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.reduce_dtype = reduce_dtype
        self.meter = meter
        first = self.slots[0].sharded
        self.trained = first.requires_grad
        self.dtype, self.device = first.dtype, first.device

        layout = lay_out([slot.sharded for slot in self.slots], self.size)
        self.length = layout.length
        """Elements of a shard: ceil(padded / N)."""
        self.gaps = layout.gaps
        """Padding: between parameters and at the end."""

        home = torch.device("cpu") if offload else self.device
        self.shard = torch.zeros(self.length, dtype=self.dtype, device=home)
        for number, slot in enumerate(self.slots):
            slot.start = layout.starts[number]
            slot.offset, end, place = layout.part_of(self.rank, number)
            slot.place = slice(place, place + end - slot.offset)
            self._cut(slot)

        # Its memory goes at once; the views stay and get new memory with each gather.
        full = torch.empty(self.size * self.length, dtype=compute_dtype, device=self.device)
        for slot in self.slots:
            slot.unsharded = nn.Parameter(slot.view(full), requires_grad=self.trained)
        # Without autograd's version counter: a gather gives saved tensors back what they had.
        self.full = full.data
        self.gathered = False
        """The full tensor has memory, and its values are there or on the way."""
        self._gathering: dist.Work | None = None
        self.full.untyped_storage().resize_(0)

        self.collected: dict[int, Tensor] = {}
        """By number of the slot, in the reduce dtype: what this rank's backward gave so far."""
        self._reducing: Exchange | None = None

    def _cut(self, slot: Slot) -> None:
        """Move this rank's part of a whole parameter into the shard."""
        part = self.shard[slot.place]
        whole = in_memory_order(slot.sharded, slot.stride)
        part.copy_(whole[slot.offset : slot.offset + len(part)])
        slot.sharded.grad = None
        slot.sharded.data = part

    def write_back(self, number: int, whole: Tensor) -> None:
        """Take this rank's part of a slot's new value."""
        slot = self.slots[number]
        part = self.shard[slot.place]
        ordered = in_memory_order(whole.detach(), slot.stride)
        part.copy_(ordered[slot.offset : slot.offset + len(part)])

    # Parameters.

    def start_gather(self) -> None:
        """Begin to fetch the other ranks' shards. A collective, in the background."""
        if not self.gathered:
            self.gathered = True
            self.full.untyped_storage().resize_(self.full.numel() * self.full.element_size())
            self.meter.parameters.add(self.full.nbytes)
        mine = self.shard.to(self.device, self.full.dtype)
        self._gathering = self._all_gather(self.full, mine)
        self.meter.sent_bytes += (self.size - 1) * mine.nbytes

    def _all_gather(self, full: Tensor, mine: Tensor) -> dist.Work | None:
        # As bytes: backends do not know all dtypes.
        parts = [part.view(torch.uint8) for part in full.split(len(mine))]
        work: dist.Work | None = dist.all_gather(
            parts, mine.view(torch.uint8), group=self.group, async_op=True
        )
        return work

    def finish_gather(self) -> None:
        """Wait until the full tensor is there."""
        if self._gathering is not None:
            self._gathering.wait()
            self._gathering = None

    def free(self) -> None:
        """Give the full tensor's memory back."""
        self.finish_gather()
        if self.gathered:
            self.gathered = False
            self.full.untyped_storage().resize_(0)
            self.meter.parameters.add(-self.full.nbytes)

    def whole(self, mine: Tensor) -> Tensor:
        """Gather what is laid out as the shard, in its own dtype. A collective.

        Args:
            mine: [length], of the same dtype on all ranks.

        Returns:
            [N x length].
        """
        mine = mine.to(self.device)
        full = mine.new_empty(self.size * self.length)
        work = self._all_gather(full, mine)
        assert work is not None
        work.wait()
        return full

    # Gradients.

    def collect(self, number: int) -> None:
        """Take a slot's gradient from its parameter, or add it to what was collected."""
        slot = self.slots[number]
        gradient = slot.unsharded.grad
        assert gradient is not None
        slot.unsharded.grad = None
        if gradient.layout != torch.strided:
            raise TypeError(
                f"the gradient of {slot.name} is sparse and shards are dense: "
                "make its layer with sparse=False"
            )
        before = self.collected.get(number)
        if before is None:
            self.collected[number] = gradient.to(self.reduce_dtype)
            self.meter.gradients.add(self.collected[number].nbytes)
        else:
            # Not in place: autograd may have given one memory to two parameters.
            self.collected[number] = before + gradient

    def shard_of_gradients(self) -> Tensor:
        """The sharded parameters' gradients as [length], with zeros where there are none."""
        mine = torch.zeros_like(self.shard)
        for slot in self.slots:
            if slot.sharded.grad is not None:
                mine[slot.place] = slot.sharded.grad
        return mine

    def start_reduce(self) -> None:
        """Begin to send each rank its N-th of what was collected. A collective, in the background.

        A parameter without a gradient counts as zeros. What is collected from now on is another
        reduction's.
        """
        message = self._pack().view(self.size, self.length)
        self._reducing = Exchange(message, self.group)
        self.meter.gradients.add(self._reducing.nbytes)
        self.meter.gradients.add(-message.nbytes)  # it was copied
        self.meter.sent_bytes += message.nbytes // self.size * (self.size - 1)

    def go_on(self, share: float) -> None:
        """Drive what `start_reduce` began: see `Exchange`. On all ranks alike."""
        if self._reducing is not None:
            self._reducing.go_on(share)

    def finish_reduce(self) -> None:
        """Wait, sum in rank order, divide by N, and add to the gradients of the sharded."""
        assert self._reducing is not None
        total = self._sum(self._reducing.finish())
        self._release()
        for slot in self.slots:
            part, before = total[slot.place], slot.sharded.grad
            slot.sharded.grad = part if before is None else before.add_(part)

    def _pack(self) -> Tensor:
        """[N x length]: what was collected, each gradient given up as it is copied."""
        message = self.full.new_empty(self.full.shape, dtype=self.reduce_dtype)
        self.meter.gradients.add(message.nbytes)
        for number, slot in enumerate(self.slots):
            gradient = self.collected.pop(number, None)
            if gradient is None:
                slot.view(message).zero_()
            else:
                slot.view(message).copy_(gradient)
                self.meter.gradients.add(-gradient.nbytes)
        for gap in self.gaps:
            message[gap].zero_()
        return message

    def _sum(self, contributions: Sequence[Tensor]) -> Tensor:
        """The mean of N x [length] in rank order; half precision is summed in float32."""
        wide = torch.promote_types(self.reduce_dtype, torch.float32)
        total = sum_in_rank_order(contributions, wide)
        return total.div_(self.size).to(self.shard.device, self.dtype)

    def drop_gradients(self) -> None:
        """Forget what was collected or is under way."""
        self.meter.gradients.add(-sum(gradient.nbytes for gradient in self.collected.values()))
        self.collected.clear()
        if self._reducing is not None:
            self._reducing.finish()  # others still write there
            self._release()

    def _release(self) -> None:
        assert self._reducing is not None
        self._reducing.release()
        self.meter.gradients.add(-self._reducing.nbytes)
        self._reducing = None
