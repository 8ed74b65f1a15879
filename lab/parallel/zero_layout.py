"""How ZeRO lays parameters out: flat tensors that the ranks update in N equal parts."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lab.parallel.layout import dense_stride, in_memory_order, lay_out


@dataclass(frozen=True)
class Piece:
    """What this rank updates of one parameter."""

    number: int
    """Of the parameter, counted through all groups."""
    parameter: nn.Parameter
    """The whole, with the gradient."""
    start: int
    """First element, in the order of memory."""
    end: int
    place: int
    """Of its first element within this rank's part of the flat tensor."""
    values: nn.Parameter
    """[end - start]: the same memory as that part of the parameter. What the optimiser sees."""


class FlatParameters:
    """Parameters of one dtype and device in one flat tensor, which the ranks update in N parts."""

    def __init__(
        self, numbered: Sequence[tuple[int, nn.Parameter]], group: dist.ProcessGroup | None
    ) -> None:
        """Move the parameters into the flat tensor; their values stay."""
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        first = numbered[0][1]
        self.group = group
        self.numbered = list(numbered)
        layout = lay_out([parameter for _, parameter in numbered], size)
        self.starts, self.gaps, self.length = layout.starts, layout.gaps, layout.length
        self.flat = torch.zeros(size * self.length, dtype=first.dtype, device=first.device)
        self.mine = self.flat[rank * self.length : (rank + 1) * self.length]
        self.pieces: list[Piece] = []
        for index, (number, parameter) in enumerate(numbered):
            stride = dense_stride(parameter)
            view = self.flat.as_strided(parameter.shape, stride, self.starts[index])
            view.copy_(parameter.detach())
            parameter.data = view
            start, end, place = layout.part_of(rank, index)
            if start < end:
                values = nn.Parameter(self.mine[place : place + end - start])
                self.pieces.append(Piece(number, parameter, start, end, place, values))

    def check(self) -> None:
        """Make sure that the parameters are still here.

        Raises:
            RuntimeError: one got other memory.
        """
        begin, grain = self.flat.data_ptr(), self.flat.element_size()
        for (number, parameter), start in zip(self.numbered, self.starts, strict=True):
            if parameter.numel() and parameter.data_ptr() != begin + start * grain:
                raise RuntimeError(
                    f"parameter {number}, {list(parameter.shape)}, got other memory after the "
                    "optimiser was made, by module.to() or p.data = ..., and would not be updated: "
                    "convert the model before, and copy values with p.data.copy_()"
                )


def by_kind(numbered: Iterable[tuple[int, nn.Parameter]]) -> list[list[tuple[int, nn.Parameter]]]:
    """Divided into what can be in one flat tensor: of one dtype and device each."""
    found: dict[tuple[torch.dtype, torch.device], list[tuple[int, nn.Parameter]]] = {}
    for number, parameter in numbered:
        found.setdefault((parameter.dtype, parameter.device), []).append((number, parameter))
    return list(found.values())


def gather(flats: Iterable[FlatParameters]) -> None:
    """Get the other ranks' parts of all of them. A collective."""
    works = [
        dist.all_gather(
            list(flat.flat.split(flat.length)),
            flat.mine.clone(),
            group=flat.group,
            async_op=True,
        )
        for flat in flats
    ]
    for work in works:
        work.wait()


def gradient_of(piece: Piece) -> Tensor | None:
    """The piece's part of its parameter's gradient, [its elements]."""
    gradient = piece.parameter.grad
    if gradient is None:
        return None
    return in_memory_order(gradient, piece.parameter.stride())[piece.start : piece.end]
