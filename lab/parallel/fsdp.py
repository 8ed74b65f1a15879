"""Fully sharded data parallelism from scratch: FullyShardedDataParallel.

Read `fsdp_round_trip_sketch` in `minimal.py` first. Each rank keeps one N-th of the parameters, of
their gradients and of the optimiser's states. A unit, mostly a block of the model, gets its full
parameters from the other ranks just before it computes, and gives them up right after.

    model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}))
    optimizer = torch.optim.AdamW(model.parameters())   # after wrapping: of this rank's parts
    for inputs, targets in loader:                      # each rank its own part
        optimizer.zero_grad()
        loss_fn(model(inputs), targets).backward()      # averages the gradients as it goes
        model.clip_grad_norm_(1.0)
        optimizer.step()

The parts: `flat_parameter.py` shards, gathers and reduces, `exchange.py` sends what is reduced,
`fsdp_unit.py` switches modules between sharded and full parameters, `fsdp_order.py` keeps the ranks
in step, `fsdp_conductor.py` says what happens when, `fsdp_wrap.py` and `fsdp_options.py` serve the
constructor, `fsdp_module.py` and `fsdp_state.py` save and load, `meter.py` counts bytes.

Any optimiser will do that treats each element by itself (SGD, Adam, AdamW and most others), for it
sees flat parts of parameters, some of them empty. Of gradient scalers, torch's ShardedGradScaler:
with GradScaler each rank would look for infinities in its own part only, and skip other steps.

Names and defaults of the arguments are torch's
(torch/distributed/fsdp/fully_sharded_data_parallel.py). Differences:

- Parameters keep their names and are always separate, as with torch's use_orig_params=True.
- A step sends (N-1)/N of each unit's padded bytes for a gather, again for backward (not for the
  outermost unit), and for its gradients, per rank, with gloo as well; and a byte a unit.
- Beside its shards a rank holds the outermost unit, those around the one that computes, that one
  and the next: no more. Of whole gradients it holds those of the unit that computes and of the one
  before, which are on their way. `meter` counts it.
- Gradients are summed in rank order, then divided: bitwise what one process gets that accumulates
  the ranks' batches. A parameter without a gradient counts as zeros, also where no rank has one.
- Every forward and backward gathers and reduces all units, in one order, whether this rank uses
  them or not, so ranks may skip different ones; but all must run backward, if any does.
- The next unit is gathered in advance in forward, too: a CPU has no streams that run ahead.
- Checkpointing of either kind may be inside a unit or around one. A checkpoint around several, or
  several reentrant ones with the same unit, are right as well, but gradients may travel twice.

Sources: Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023,
https://arxiv.org/abs/2304.11277; Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training
Trillion Parameter Models", SC 2020, https://arxiv.org/abs/1910.02054.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lab.parallel.fsdp_conductor import Conductor
from lab.parallel.fsdp_module import ShardedModule
from lab.parallel.fsdp_options import (
    BackwardPrefetch,
    CPUOffload,
    MixedPrecision,
    ShardingStrategy,
    check_precision,
    group_of,
    reshards_after_forward,
)
from lab.parallel.fsdp_unit import Unit, device_of
from lab.parallel.fsdp_wrap import (
    agree,
    clean_name,
    compute_dtype,
    convert_buffers,
    own_modules,
    prepare,
    slots_of,
    units_by_policy,
    wrap_inside,
)
from lab.parallel.graph import converted_to, moved_to


class FullyShardedDataParallel(ShardedModule):
    """A module whose parameters are spread over the ranks while they are not in use.

    Outside of forward and backward, `parameters()` are this rank's parts, of shape [elements].
    """

    def __init__(
        self,
        module: nn.Module,
        process_group: dist.ProcessGroup | None = None,
        sharding_strategy: ShardingStrategy | None = None,
        cpu_offload: CPUOffload | None = None,
        auto_wrap_policy: Any = None,
        backward_prefetch: BackwardPrefetch | None = BackwardPrefetch.BACKWARD_PRE,
        mixed_precision: MixedPrecision | None = None,
        ignored_modules: Iterable[nn.Module] | None = None,
        param_init_fn: Callable[[nn.Module], None] | None = None,
        device_id: int | torch.device | None = None,
        sync_module_states: bool = False,
        forward_prefetch: bool = True,
        limit_all_gathers: bool = True,
        use_orig_params: bool = True,
        ignored_states: Iterable[nn.Parameter] | Iterable[nn.Module] | None = None,
        device_mesh: Any = None,
    ) -> None:
        """Check that all ranks have the same model, and keep this rank's part. A collective.

        Args:
            module: what is not in a unit inside it becomes one unit. Its parameters may be of
                several dtypes, tied, frozen, or on the meta device.
            process_group: the ranks to shard among; default all.
            sharding_strategy: FULL_SHARD (default) or SHARD_GRAD_OP, by which the full parameters
                stay from forward to backward.
            cpu_offload: `offload_params=True`: shards, gradients and the optimiser's states live on
                the CPU.
            auto_wrap_policy: which modules inside become units: one of torch.distributed.fsdp.wrap.
            backward_prefetch: BACKWARD_PRE, BACKWARD_POST or None: not in advance.
            mixed_precision: dtypes of computing and of the wire.
            ignored_modules: their parameters stay whole, and nobody averages their gradients.
            param_init_fn: gives a module's own parameters memory and values, if they are on the
                meta device; default `to_empty` and `reset_parameters()`.
            device_id: move the module there before.
            sync_module_states: start from rank 0's values. Otherwise each rank's part comes from
                its own.
            forward_prefetch: gather the next unit while one computes in forward, too.
            limit_all_gathers: always so here: one in advance.
            use_orig_params: always so here.
            ignored_states: as ignored_modules, or parameters.
            device_mesh: of one dimension, instead of a process group.

        Raises:
            ValueError: the ranks' models differ (raised on every rank), weights are tied across
                units, parameters are on several devices, or an option is not supported.
            TypeError: a parameter that needs a gradient is complex.
        """
        super().__init__()
        del limit_all_gathers, use_orig_params
        group = self.process_group = group_of(process_group, device_mesh)
        reshard = reshards_after_forward(sharding_strategy)
        self._precision = check_precision(mixed_precision)
        not_ours = {*(ignored_modules or ()), *(ignored_states or ())}
        ignored = {inner for m in not_ours if isinstance(m, nn.Module) for inner in m.modules()}
        if auto_wrap_policy is not None:
            options = {
                "process_group": group,
                "sharding_strategy": sharding_strategy,
                "cpu_offload": cpu_offload,
                "backward_prefetch": backward_prefetch,
                "mixed_precision": mixed_precision,
                "param_init_fn": param_init_fn,
                "device_id": device_id,
                "sync_module_states": sync_module_states,
                "forward_prefetch": forward_prefetch,
                "ignored_states": not_ours,
            }
            wrap_inside(
                module,
                units_by_policy(module, auto_wrap_policy, ignored),
                lambda inner, own: FullyShardedDataParallel(inner, **{**options, **own}),
            )

        own = list(own_modules(module, lambda m: m in ignored or isinstance(m, type(self))))
        ids = {id(state) for state in not_ours}
        prepare(own, ids, device_id, param_init_fn)
        slots = slots_of(own, ids)
        if slots and isinstance(module, nn.ModuleList | nn.ModuleDict):
            raise ValueError(
                f"a {type(module).__name__} has no forward to gather parameters for: wrap the "
                "modules in it, or the one around it"
            )
        agree(own, slots, "FULL_SHARD" if reshard else "SHARD_GRAD_OP", group, sync_module_states)
        convert_buffers(own, self._precision)

        self._fsdp_wrapped_module = module
        self._unit = Unit(
            type(module).__name__,
            [(slot, compute_dtype(slot, self._precision)) for slot in slots],
            group,
            reduce_dtype=self._precision.reduce_dtype,
            reshard_after_forward=reshard,
            offload=bool(cpu_offload and cpu_offload.offload_params),
        )
        self._own_conductor = Conductor(
            *self._take_over(module),
            group,
            forward_prefetch=forward_prefetch,
            backward_prefetch=None if backward_prefetch is None else backward_prefetch.name,
        )

    def _take_over(self, module: nn.Module) -> tuple[list[Unit], dict[Unit, Unit]]:
        """All units, this one first, and which is around which. Name the inner ones from here."""
        units = {"": self._unit}
        parents = {}
        for name, inner in module.named_modules():
            if isinstance(inner, FullyShardedDataParallel):
                around = [path for path in units if not path or name.startswith(f"{path}.")]
                parents[inner._unit] = units[max(around, key=len)]
                units[name] = inner._unit
                inner._unit.name = f"{clean_name(name)} ({type(inner.module).__name__})"
                inner._unit.share(self._unit.meter)
        return list(units.values()), parents

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward on this rank's part of the batch. A collective.

        On a GPU, forward and backward are to stay on one stream. Inside torch.compile it runs as
        without: collectives and freed storages are nothing to trace. Compile what is wrapped.

        Raises:
            RuntimeError: a unit is used again after it was freed, unlike in the first forward.
        """
        if torch.compiler.is_compiling():
            return torch.compiler.disable(self.forward)(*args, **kwargs)
        conductor = self._unit.conductor
        if conductor is not None and conductor.busy:
            cast = self._precision.cast_forward_inputs
            return self._forward(conductor, cast, args, kwargs)
        cast = self._precision.cast_root_forward_inputs
        device = device_of(self._own_conductor.units)
        if device.type != "cpu":
            args, kwargs = moved_to(device, args), moved_to(device, kwargs)
        with self._own_conductor.forward(self.training):
            return self._forward(self._own_conductor, cast, args, kwargs)

    def _forward(self, conductor: Conductor, cast: bool, args: Any, kwargs: Any) -> Any:
        dtype = self._precision.param_dtype
        if dtype is not None and cast:
            args, kwargs = converted_to(dtype, args), converted_to(dtype, kwargs)
        with conductor.unit_forward(self._unit):
            outputs = self._fsdp_wrapped_module(*args, **kwargs)
            conductor.hook_outputs(self._unit, (args, kwargs), outputs)
        return outputs

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only accumulate, on each rank by itself: for all microbatches of a step but the last.

        Of the outermost unit only. Where forward is called counts. Full gradients stay until the
        next backward outside or this module's `zero_grad`: an optimiser's does not reach them.
        """
        conductor = self._own_conductor
        before = conductor.sync_gradients
        conductor.sync_gradients = False
        try:
            yield
        finally:
            conductor.sync_gradients = before

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As any module's, and what `no_sync` has collected."""
        super().zero_grad(set_to_none)
        for m in self.fsdp_modules(self):
            m._unit.drop_gradients()

    @torch.no_grad()
    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> Tensor:
        """Scale all gradients so that their norm over all ranks is at most `max_norm`.

        A collective. torch.nn.utils.clip_grad_norm_ would take the norm of this rank's part.

        Args:
            max_norm: the largest norm that is left alone.
            norm_type: p of the norm, inf included.

        Returns:
            The norm before, a float32 scalar, equal on all ranks.
        """
        sharded = {id(slot.sharded) for m in self.fsdp_modules(self) for slot in m._unit.slots}
        parts: list[Tensor] = []
        whole: list[Tensor] = []
        for parameter in self.parameters():
            if parameter.grad is not None:
                (parts if id(parameter) in sharded else whole).append(parameter.grad)
        norm = self._norm(parts, whole, float(norm_type))
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in (*parts, *whole):
            gradient.mul_(factor.to(gradient.device, gradient.dtype))
        return norm

    def _norm(self, parts: list[Tensor], whole: list[Tensor], p: float) -> Tensor:
        """Over this rank's parts, all others', and what every rank has whole."""
        device = device_of(self._own_conductor.units)

        def norm_of(gradients: list[Tensor]) -> Tensor:
            norms = [
                torch.linalg.vector_norm(g, p, dtype=torch.float32) for g in gradients if g.numel()
            ]
            zero = torch.zeros((), device=device)
            together = torch.stack([zero, *(norm.to(device) for norm in norms)])
            norm: Tensor = torch.linalg.vector_norm(together, p)
            return norm

        mine = norm_of(parts)
        if p == float("inf"):
            # A MAX over the ranks may drop a NaN; it never drops infinity.
            total = torch.nan_to_num(mine, nan=p, posinf=p)
            dist.all_reduce(total, op=dist.ReduceOp.MAX, group=self.process_group)
            return torch.maximum(total, norm_of(whole))
        total = mine**p
        dist.all_reduce(total, group=self.process_group)
        return (total + norm_of(whole) ** p) ** (1 / p)


FSDP = FullyShardedDataParallel
"""The name that most scripts use."""
