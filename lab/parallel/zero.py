"""ZeRO, stages 1 and 2: each rank keeps the optimiser's states of one N-th of the parameters only.

Adam keeps two numbers for each parameter, which data parallelism repeats on every rank. But a rank
that has averaged gradients can leave the step of most parameters to the others: it updates its own
N-th and gets the rest from them. An update that treats each element by itself (SGD, Adam, AdamW and
most others) gives bitwise what the whole optimiser would; with fused=True nearly, since that kernel
computes a tensor's last elements by other instructions.

    model = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=1e-3)

Then a rank needs no more of the averaged gradients than those of its own N-th. In stage 2 backward
leaves it just these, with half of DDP's communication, and `grad` None on all parameters:

    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.Adam, stage=2, model=model, lr=1e-3
    )
    loss.backward()
    optimizer.clip_grad_norm_(1.0)    # torch's own would see no gradients
    optimizer.step()

For S bytes of parameters a rank sends 3 (N-1)/N S in a step of stage 1, DDP's all-reduce included,
and 2 (N-1)/N S in one of stage 2: a reduce-scatter of gradients, an all-gather of parameters.

Source: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
SC 2020, https://arxiv.org/abs/1910.02054. Argument names are those of
torch.distributed.optim.ZeroRedundancyOptimizer, which deals out whole parameters, so that one large
embedding stays on one rank; here a parameter may be cut anywhere.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.optim import Optimizer

from lab.parallel.buckets import divide
from lab.parallel.ddp import DistributedDataParallel
from lab.parallel.zero_gradients import GradientSharding, cap_mb
from lab.parallel.zero_layout import FlatParameters, Piece, by_kind, gather, gradient_of
from lab.parallel.zero_state import cut_state, gather_states

NOT_ELEMENTWISE = ("Adafactor", "LBFGS", "Muon", "SparseAdam")
"""torch's optimisers whose update of an element depends on others of its parameter."""


class ZeroRedundancyOptimizer(Optimizer, Joinable):
    """An optimiser that holds the states of ceil(P / N) parameters on each of N ranks.

    `param_groups` hold the whole parameters, so learning-rate schedulers work as usual. In stage 1
    gradients must be averaged before `step`, as DistributedDataParallel does, and be None on the
    same parameters of every rank; torch's gradient clipping and GradScaler work as well.
    """

    def __init__(
        self,
        params: Iterable[Any],
        optimizer_class: type[Optimizer],
        process_group: dist.ProcessGroup | None = None,
        parameters_as_bucket_view: bool = False,
        *,
        stage: Literal[1, 2] = 1,
        model: DistributedDataParallel | None = None,
        **defaults: Any,
    ) -> None:
        """Lay the parameters out in flat tensors and make the optimiser of this rank's part.

        Wrap the model in DistributedDataParallel before, so that the ranks' parameters are equal.

        Args:
            params: parameters or groups, as for any optimiser; the same on every rank.
            optimizer_class: one that treats each element by itself.
            process_group: the ranks to share with; default all, in stage 2 the model's.
            parameters_as_bucket_view: for scripts written for torch. Always so here.
            stage: 1: states in parts. 2: gradients as well.
            model: stage 2: the model, all of whose trained parameters are among `params`. From now
                on its backward leaves gradients here, summed in rank order; `no_sync`, `join`,
                `find_unused_parameters` and its other options work as ever, but no communication
                hook. Its buckets become smaller, where they are more than a 16th of all gradients.
                Each backward that averages adds to what is here until `zero_grad`.
            defaults: the optimiser's arguments.

        Raises:
            ValueError: the optimiser does not treat elements by themselves; another stage; stage 2
                without a model of lab.parallel, or other parameters or another group than its.
            RuntimeError: stage 2, and the model has a communication hook.
        """
        del parameters_as_bucket_view
        if stage not in (1, 2):
            raise ValueError(
                f"no stage {stage} here, only 1 and 2: FullyShardedDataParallel has parameters in "
                "parts as well"
            )
        if stage == 2 and not isinstance(model, DistributedDataParallel):
            raise ValueError(
                "stage 2 needs model=, a DistributedDataParallel of lab.parallel, whose backward "
                "is to leave each rank its part of the gradients"
            )
        if stage == 1 and model is not None:
            raise ValueError("model= is for stage 2: pass stage=2 as well")
        if model is not None and process_group not in (None, model.process_group):
            raise ValueError("process_group must be the model's, or left out")
        if optimizer_class.__name__ in NOT_ELEMENTWISE:
            raise ValueError(
                f"{optimizer_class.__name__} needs whole parameters, and here each rank has parts"
            )
        Joinable.__init__(self)
        self.process_group = process_group if model is None else model.process_group
        self.model = model
        self.optimizer_class = optimizer_class
        self._arguments = defaults
        self._optimizer: Optimizer | None = None
        self._flats: list[FlatParameters] = []
        self._count = 0
        self._consolidated: dict[str, Any] | None = None
        self._sharding: GradientSharding | None = None
        super().__init__(params, defaults)
        if model is not None:
            self._sharding = GradientSharding(model.reducer, self._flats)
        # The optimiser's own defaults, for schedulers that look for lr or momentum there.
        assert self._optimizer is not None
        self.defaults.update(self._optimizer.defaults)
        for outer, inner in self._group_pairs():
            outer.update({name: value for name, value in inner.items() if name not in outer})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters, as for any optimiser. On all ranks alike.

        Raises:
            RuntimeError: in stage 2, which has all of the model's from the beginning.
        """
        if self._sharding is not None:
            raise RuntimeError("stage 2 has all of the model's parameters: give all groups at once")
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        numbered = list(enumerate(group["params"], start=self._count))
        self._count += len(numbered)
        if self.model is not None:  # what travels together lies together
            trained = [(number, p) for number, p in numbered if p.requires_grad]
            reducer = self.model.reducer
            divided = divide(trained, cap_mb(reducer.parameters, reducer.bucket_cap_mb))
        else:
            divided = by_kind(numbered)
        flats = [FlatParameters(members, self.process_group) for members in divided]
        self._flats += flats
        pieces = [piece.values for flat in flats for piece in flat.pieces]
        inner = {name: value for name, value in group.items() if name != "params"}
        if self._optimizer is None:
            self._optimizer = self.optimizer_class([{**inner, "params": pieces}], **self._arguments)
        else:
            self._optimizer.add_param_group({**inner, "params": pieces})

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # as torch's optimisers, whose overloads mypy cannot match
        """Update this rank's part, then get the others'. A collective.

        Args:
            closure: computes the loss and the averaged gradients anew.

        Raises:
            RuntimeError: stage 2, and backward was called inside `no_sync` only; or a parameter got
                other memory, by `module.to` or `p.data = ...`, so that nobody would see the update.
        """
        work = Join.notify_join_context(self)
        if work is not None:
            work.wait()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._step()
        return loss

    def _step(self) -> None:
        assert self._optimizer is not None
        for flat in self._flats:
            flat.check()
        for outer, inner in self._group_pairs():  # what schedulers changed
            inner.update({name: value for name, value in outer.items() if name != "params"})
        for piece, gradient in self._gradients():
            piece.values.grad = gradient
        self._optimizer.step()
        for piece in self._pieces():
            piece.values.grad = None
        gather(self._flats)
        self._consolidated = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As any optimiser's. `model.zero_grad()` does the same."""
        super().zero_grad(set_to_none)
        if self.model is not None:
            self.model.reducer.clear()

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale the averaged gradients down to a norm of `max_norm`. In stage 2 a collective.

        Args:
            max_norm: of all of them as one vector.
            norm_type: p of the p-norm; may be infinity.

        Returns:
            The norm before, a scalar, the same bits on every rank; in stage 2 float64.
        """
        if self._sharding is None:
            return nn.utils.clip_grad_norm_(self._whole(), max_norm, norm_type)
        return self._sharding.clip_(max_norm, norm_type)

    def whole_gradients(self) -> list[Tensor | None]:
        """The averaged gradients of all parameters, in the order of `param_groups`.

        In stage 2 a collective, and as much memory as stage 2 saves: for tests and proofs.
        """
        if self._sharding is None:
            return [parameter.grad for parameter in self._whole()]
        gathered = self._sharding.gather()
        return [gathered.get(number) for number in range(self._count)]

    def _gradients(self) -> list[tuple[Piece, Tensor | None]]:
        """Of this rank's pieces, [elements of the piece]."""
        if self._sharding is not None:
            return self._sharding.gradients()
        return [(piece, gradient_of(piece)) for piece in self._pieces()]

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Collect all states on one rank, where `state_dict` then gives them. A collective."""
        states = [(piece.number, piece.start, dict(state)) for piece, state in self.piece_states()]
        joined = gather_states(states, self._whole(), to, self.process_group)
        if joined is not None:
            self._consolidated = {"state": joined}

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
        states = [
            (piece, cut_state(state_dict["state"].get(piece.number, {}), piece))
            for piece in self._pieces()
        ]
        self.load_piece_states(states, state_dict["param_groups"])

    def piece_states(self) -> list[tuple[Piece, dict[str, Any]]]:
        """This rank's pieces of parameters, and the states of these: what it alone can save."""
        assert self._optimizer is not None
        return [(piece, self._optimizer.state.get(piece.values, {})) for piece in self._pieces()]

    def load_piece_states(
        self,
        states: Sequence[tuple[Piece, dict[str, Any]]],
        param_groups: Sequence[dict[str, Any]],
    ) -> None:
        """Take states of this rank's pieces, as `piece_states` gives them.

        Raises:
            ValueError: there are other groups or numbers of parameters.
        """
        assert self._optimizer is not None
        sizes = [len(group["params"]) for group in self.param_groups]
        found = [len(group["params"]) for group in param_groups]
        if sizes != found:
            raise ValueError(f"the state is of groups of {found} parameters, here are {sizes}")
        for group, loaded in zip(self.param_groups, param_groups, strict=True):
            group.update({name: value for name, value in loaded.items() if name != "params"})
        self._consolidated = None
        self._optimizer.state.clear()
        self._optimizer.state.update({piece.values: state for piece, state in states if state})

    def state_bytes(self) -> int:
        """Bytes of the states' tensors on this rank."""
        assert self._optimizer is not None
        states = self._optimizer.state.values()
        values = [value for state in states for value in state.values()]
        return sum(value.nbytes for value in values if isinstance(value, Tensor))

    def gradient_bytes(self) -> int:
        """Bytes of the gradients' tensors on this rank."""
        if self._sharding is not None:
            return self._sharding.bytes()
        gradients = [parameter.grad for parameter in self._whole()]
        return sum(gradient.nbytes for gradient in gradients if gradient is not None)

    # Uneven inputs: `Join([model, optimizer])` of torch.distributed.algorithms.join.

    def join_hook(self, **_: Any) -> JoinHook:
        """What a rank without input does meanwhile: the others' steps with them."""
        return _Shadow(self)

    @property
    def join_device(self) -> torch.device:
        """Where `Join` puts its messages."""
        return self._flats[0].flat.device

    @property
    def join_process_group(self) -> Any:
        """Among whom."""
        return self.process_group or dist.group.WORLD

    def _whole(self) -> list[nn.Parameter]:
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _pieces(self) -> Iterable[Piece]:
        return (piece for flat in self._flats for piece in flat.pieces)

    def _group_pairs(self) -> Iterable[tuple[dict[str, Any], dict[str, Any]]]:
        assert self._optimizer is not None
        return zip(self.param_groups, self._optimizer.param_groups, strict=True)


class _Shadow(JoinHook):
    """`Join` calls it on ranks that have no more input, once for each step of the others."""

    def __init__(self, optimizer: ZeroRedundancyOptimizer) -> None:
        self.optimizer = optimizer

    def main_hook(self) -> None:
        self.optimizer._step()
