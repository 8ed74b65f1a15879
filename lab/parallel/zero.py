"""ZeRO, stage 1: each rank keeps the optimiser's states of one N-th of the parameters only.

Adam keeps two numbers for each parameter, which data parallelism repeats on every rank. But a rank
that has averaged gradients can leave the step of most parameters to the others: it updates its own
N-th and gets the rest from them. An update that treats each element by itself (SGD, Adam, AdamW and
most others) gives bitwise what the whole optimiser would.

    model = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC 2020, https://arxiv.org/abs/1910.02054. Argument names are those of
torch.distributed.optim.ZeroRedundancyOptimizer, which deals out whole parameters, so that one large
embedding stays on one rank; here a parameter may be cut anywhere.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

NOT_ELEMENTWISE = ("Adafactor", "LBFGS", "Muon", "SparseAdam")
"""torch's optimisers whose update of an element depends on others of its parameter."""


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
        total = sum(parameter.numel() for _, parameter in numbered)
        self.group = group
        self.length = -(-total // size)
        """Elements of a rank: ceil(total / N). The last parts may end with unused zeros."""
        self.flat = torch.zeros(size * self.length, dtype=first.dtype, device=first.device)
        self.mine = self.flat[rank * self.length : (rank + 1) * self.length]
        self.pieces: list[Piece] = []
        place = 0
        for number, parameter in numbered:
            count = parameter.numel()
            part = self.flat[place : place + count]
            stride = torch.empty_like(parameter, device="meta").stride()
            view = part.as_strided(parameter.shape, stride)
            view.copy_(parameter.detach())
            parameter.data = view
            start = min(max(rank * self.length - place, 0), count)
            end = min(max((rank + 1) * self.length - place, 0), count)
            if start < end:
                values = nn.Parameter(part[start:end])
                self.pieces.append(Piece(number, parameter, start, end, values))
            place += count

    def gather(self) -> None:
        """Get the other ranks' parts. A collective."""
        if self.length:
            parts = list(self.flat.split(self.length))
            dist.all_gather(parts, self.mine.clone(), group=self.group)


class ZeroRedundancyOptimizer(Optimizer):
    """An optimiser that holds the states of ceil(P / N) parameters on each of N ranks.

    `param_groups` hold the whole parameters, so learning-rate schedulers, gradient clipping and
    GradScaler work as usual: gradients must be averaged before `step`, as
    DistributedDataParallel does, and be None on the same parameters of every rank.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[Optimizer],
        process_group: dist.ProcessGroup | None = None,
        **defaults: Any,
    ) -> None:
        """Lay the parameters out in flat tensors and make the optimiser of this rank's part.

        Wrap the model in DistributedDataParallel before, so that the ranks' parameters are equal.

        Args:
            params: parameters or groups, as for any optimiser; the same on every rank.
            optimizer_class: one that treats each element by itself.
            process_group: the ranks to share with; default all.
            defaults: the optimiser's arguments.

        Raises:
            ValueError: the optimiser does not treat elements by themselves.
        """
        if optimizer_class.__name__ in NOT_ELEMENTWISE:
            raise ValueError(
                f"{optimizer_class.__name__} needs whole parameters, and here each rank has parts"
            )
        self.process_group = process_group
        self.optimizer_class = optimizer_class
        self._arguments = defaults
        self._optimizer: Optimizer | None = None
        self._flats: list[FlatParameters] = []
        self._count = 0
        self._consolidated: dict[str, Any] | None = None
        super().__init__(params, defaults)
        # The optimiser's own defaults, for schedulers that look for lr or momentum in the groups.
        for outer, inner in self._group_pairs():
            outer.update({name: value for name, value in inner.items() if name not in outer})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as for any optimiser. On all ranks alike."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        by_kind: dict[tuple[torch.dtype, torch.device], list[tuple[int, nn.Parameter]]] = {}
        for parameter in group["params"]:
            by_kind.setdefault((parameter.dtype, parameter.device), []).append(
                (self._count, parameter)
            )
            self._count += 1
        flats = [FlatParameters(numbered, self.process_group) for numbered in by_kind.values()]
        self._flats += flats
        pieces = [piece.values for flat in flats for piece in flat.pieces]
        inner = {**{name: value for name, value in group.items() if name != "params"}}
        if self._optimizer is None:
            self._optimizer = self.optimizer_class([{**inner, "params": pieces}], **self._arguments)
        else:
            self._optimizer.add_param_group({**inner, "params": pieces})

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # as torch's optimisers, whose overloads mypy cannot match
        """Update this rank's part, then get the others'. A collective.

        Args:
            closure: computes the loss and the averaged gradients anew.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        assert self._optimizer is not None
        for outer, inner in self._group_pairs():  # what schedulers changed
            inner.update({name: value for name, value in outer.items() if name != "params"})
        for piece in self._pieces():
            gradient = piece.parameter.grad
            if gradient is not None:
                piece.values.grad = in_memory_order(gradient, piece.parameter)[
                    piece.start : piece.end
                ]
        self._optimizer.step()
        for piece in self._pieces():
            piece.values.grad = None
        for flat in self._flats:
            flat.gather()
        self._consolidated = None
        return loss

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collect all states on one rank, where `state_dict` then gives them. A collective."""
        assert self._optimizer is not None
        mine = [
            (piece.number, piece.start, dict(self._optimizer.state.get(piece.values, {})))
            for piece in self._pieces()
        ]
        rank, size = dist.get_rank(self.process_group), dist.get_world_size(self.process_group)
        everybodys: list[Any] | None = [None] * size if rank == to else None
        dist.gather_object(mine, everybodys, group=self.process_group, group_dst=to)
        if everybodys is None:
            return
        parts: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for number, start, state in (row for rows in everybodys for row in rows):
            if state:
                parts.setdefault(number, []).append((start, state))
        whole = [parameter for group in self.param_groups for parameter in group["params"]]
        states = {}
        for number, rows in sorted(parts.items()):
            rows.sort(key=lambda row: row[0])
            states[number] = _join_states([state for _, state in rows], whole[number])
        self._consolidated = {"state": states}

    def state_dict(self) -> dict[str, Any]:
        """What the whole optimiser's would be, after `consolidate_state_dict` on this rank.

        It fits the bare optimiser, and this one on any number of ranks.

        Raises:
            RuntimeError: the states were not consolidated here since the last step.
        """
        if self._consolidated is None:
            raise RuntimeError(
                "the states are spread over the ranks: call consolidate_state_dict(to=rank) on all "
                "ranks first, then state_dict() on that one"
            )
        return {**self._consolidated, "param_groups": super().state_dict()["param_groups"]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take this rank's part of a whole state: all ranks load the same.

        Raises:
            ValueError: it has other groups or numbers of parameters.
        """
        assert self._optimizer is not None
        sizes = [len(group["params"]) for group in self.param_groups]
        found = [len(group["params"]) for group in state_dict["param_groups"]]
        if sizes != found:
            raise ValueError(f"the state is of groups of {found} parameters, here are {sizes}")
        for group, loaded in zip(self.param_groups, state_dict["param_groups"], strict=True):
            group.update({name: value for name, value in loaded.items() if name != "params"})
        self._consolidated = None
        self._optimizer.state.clear()
        for piece in self._pieces():
            state = state_dict["state"].get(piece.number)
            if state:
                self._optimizer.state[piece.values] = _cut_state(state, piece)

    def state_bytes(self) -> int:
        """Bytes of the states' tensors on this rank."""
        assert self._optimizer is not None
        states = self._optimizer.state.values()
        return sum(
            value.nbytes
            for state in states
            for value in state.values()
            if isinstance(value, Tensor)
        )

    def _pieces(self) -> Iterable[Piece]:
        return (piece for flat in self._flats for piece in flat.pieces)

    def _group_pairs(self) -> Iterable[tuple[dict[str, Any], dict[str, Any]]]:
        assert self._optimizer is not None
        return zip(self.param_groups, self._optimizer.param_groups, strict=True)


def in_memory_order(tensor: Tensor, like: Tensor) -> Tensor:
    """The elements as [numel] in the order in which `like` has them in memory. A view if it can."""
    if tensor.stride() != like.stride():
        tensor = torch.empty_like(like).copy_(tensor)
    return tensor.detach().as_strided((tensor.numel(),), (1,))


def _join_states(parts: Sequence[dict[str, Any]], parameter: Tensor) -> dict[str, Any]:
    """The state of a whole parameter from those of its pieces: element-wise tensors end to end."""
    joined: dict[str, Any] = {}
    for name, value in parts[0].items():
        if isinstance(value, Tensor) and value.dim():
            whole = torch.empty_like(parameter, dtype=value.dtype)
            in_memory_order(whole, whole).copy_(torch.cat([part[name] for part in parts]))
            joined[name] = whole
        else:
            joined[name] = value
    return joined


def _cut_state(state: dict[str, Any], piece: Piece) -> dict[str, Any]:
    """The piece's part of a whole state."""
    cut: dict[str, Any] = {}
    for name, value in state.items():
        # The count of steps is a scalar, and so is the average of a scalar parameter.
        elementwise = isinstance(value, Tensor) and value.shape == piece.parameter.shape
        if elementwise and name != "step":
            moved = value.to(piece.parameter.device)
            cut[name] = in_memory_order(moved, piece.parameter)[piece.start : piece.end].clone()
        else:
            cut[name] = value.clone() if isinstance(value, Tensor) else value
    return cut
