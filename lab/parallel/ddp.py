"""Data parallelism with overlap: DistributedDataParallel from scratch.

Read `minimal.py` first; this does the same, and fast. Each rank holds a replica of the model. While
backward still computes the gradients of the first layers, those of the last ones are already on the
way to the other ranks, packed into buckets.

    model = DistributedDataParallel(model)   # the same model on every rank, from here on
    for inputs, targets in loader:           # each rank its own part: DistributedSampler
        optimizer.zero_grad()
        loss_fn(model(inputs), targets).backward()   # averages the gradients as it goes
        optimizer.step()

The parts: `replicas.py` makes the ranks equal at the start, `buckets.py` lays gradients out,
`reducer.py` averages them during backward, `comm_hooks.py` says how one bucket is averaged,
`graph.py` finds what a forward used, `uneven.py` serves `join`.

Names and defaults of the arguments are torch's (torch/nn/parallel/distributed.py). Differences:

- Ranks whose models differ are told so at construction: names are compared, not only shapes.
- A parameter without a gradient is an error at the end of backward that names it, on the rank where
  that is so; torch waits for it until the process group's time-out.
- Buffers are broadcast by each forward that leads to averaging, and by no other: one rank alone may
  evaluate under torch.no_grad(). torch broadcasts in the first forward after a step.
- Gradients are always views of buckets: they cost no second copy.
- `bucket_cap_mb=None` makes buckets of 3 MiB of a small model, so that they overlap with backward.
- `state_dict` has the bare model's keys; loading takes torch's `module.` keys as well.
- torch.distributed.checkpoint.state_dict unwraps torch's class only: give it `model.module`.
- Sums first and divides then, as one process would; torch divides first. See `mean`.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.nn.modules.utils import consume_prefix_in_state_dict_if_present

from lab.parallel.comm_hooks import Hook, Mean
from lab.parallel.ddp_checks import check_device_ids, check_torchs, device_of
from lab.parallel.ddp_loading import after_load, before_load, is_torchs
from lab.parallel.graph import moved_to
from lab.parallel.reducer import Reducer
from lab.parallel.replicas import broadcast_, check_replicas, describe
from lab.parallel.uneven import Shadow, check_forward, meet_shadows


class DistributedDataParallel(nn.Module, Joinable):
    """A replica of `module` on every rank, whose backward averages the gradients over the ranks.

    Any module with parameters on one device that the group's backend can send from (gloo: CPU or
    CUDA, nccl: CUDA), of any shapes and real dtypes, tied or not. Checkpointed parts may be of
    either kind; a parameter that two reentrant checkpoints use needs static_graph=True.
    """

    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        *,
        broadcast_buffers: bool | None = None,
        forward_sync_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        gradient_as_bucket_view: bool = True,
        static_graph: bool = False,
        mean: Mean = "sum_then_divide",
        hang_guard: bool = True,
        **torchs: Any,
    ) -> None:
        """Check that all ranks have the same model, and give them rank 0's values. A collective.

        Args:
            module: the bare model. Freeze and unfreeze parameters before, not afterwards.
            device_ids: for scripts written for torch: None, or the one CUDA device of the model, to
                which tensors among forward's arguments are then moved.
            output_device: None or the same.
            broadcast_buffers: the older name of `forward_sync_buffers`, which counts if both are
                given.
            forward_sync_buffers: overwrite buffers (BatchNorm's running statistics, say) by rank
                0's before each forward. Default True.
            init_sync: False: neither check nor overwrite; the ranks are equal already.
            process_group: the ranks to average over; default all.
            bucket_cap_mb: MiB of gradients that travel together. 0: each by itself. None: by the
                model's size, see `buckets.default_cap_mb`.
            find_unused_parameters: forward may leave parameters unused, other ones on each rank.
                One that some ranks used gets the mean, with zeros for those that did not; one that
                no rank used keeps `grad` None. Costs a walk over the graph and one small all-reduce
                a step.
            gradient_as_bucket_view: for scripts written for torch. Always so here.
            static_graph: the same parameters are used, equally often, in every step. The first step
                finds out which, without overlap; later ones need no search.
            mean: sum_then_divide, avg or divide_then_sum: see `comm_hooks.mean_of`.
            hang_guard: False: as torch, where a parameter that gets no gradient is not reported,
                and other ranks wait for it. For lessons.
            torchs: its other arguments: see `ddp_checks.py` for those that have no effect here.

        Raises:
            ValueError: the ranks' models or options differ (raised on every rank), no parameter
                needs a gradient, a lazy parameter has no shape yet, parameters are on several
                devices or not on that of `device_ids`, an argument of torch's is not supported.
            TypeError: a parameter that needs a gradient is complex; no such argument.
        """
        super().__init__()
        Joinable.__init__(self)
        del gradient_as_bucket_view
        check_torchs(torchs)
        if forward_sync_buffers is None:
            forward_sync_buffers = broadcast_buffers is not False
        self.module = module
        self.process_group = process_group
        self.forward_sync_buffers = forward_sync_buffers
        self.require_backward_grad_sync = True
        """False inside `no_sync`. Frameworks read and set it on torch's class as well."""
        trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
        self._frozen = [(name, p) for name, p in module.named_parameters() if not p.requires_grad]
        self.device = device_of(module, trained)
        self._move_inputs = device_ids is not None
        check_device_ids(self.device, device_ids, output_device)

        options = {
            "forward_sync_buffers": forward_sync_buffers,
            "bucket_cap_mb": None if bucket_cap_mb is None else float(bucket_cap_mb),
            "mean": mean,
            "find_unused_parameters": find_unused_parameters,
            "static_graph": static_graph,
        }
        if init_sync:
            check_replicas(describe(module, options), process_group)
            self.broadcast_state(source=0)
        self.reducer = Reducer(
            trained,
            process_group,
            bucket_cap_mb=bucket_cap_mb,
            mean=mean,
            find_unused_parameters=find_unused_parameters,
            static_graph=static_graph,
            hang_guard=hang_guard,
        )
        # As a part of a larger module: its checkpoint has the bare model's keys, and loading looks
        # for the module under its name here.
        nn.Module.register_load_state_dict_pre_hook(self, before_load)
        self.register_load_state_dict_post_hook(after_load)  # type: ignore[no-untyped-call]  # torch has no types for it

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward on this rank's part of the batch.

        A collective where buffers are broadcast, unless inside `no_sync` or `torch.no_grad`.

        Raises:
            RuntimeError: the last backward has sent some of its buckets and not others, or a
                parameter was unfrozen after the model had been wrapped.
        """
        average = torch.is_grad_enabled() and self.require_backward_grad_sync
        source = 0
        if self._join_config.enable:
            source = meet_shadows(self, self.reducer, average)
        if average:
            self.reducer.check_finished()
            if unfrozen := [name for name, p in self._frozen if p.requires_grad]:
                raise RuntimeError(
                    f"{unfrozen[0]} was unfrozen after the model had been wrapped, so nobody "
                    "would average its gradient: wrap the bare model anew"
                )
            if self.forward_sync_buffers:
                broadcast_(self.module.buffers(), source, self.process_group)
        if self._move_inputs:
            args, kwargs = moved_to(self.device, args), moved_to(self.device, kwargs)
        outputs = self.module(*args, **kwargs)
        if average:
            self.reducer.expect_backward(outputs)
        elif torch.is_grad_enabled():
            self.reducer.expect_nothing()
        return outputs

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Only accumulate, on each rank by itself: for all microbatches of a step but the last.

        Put forward and backward inside: what counts is where forward was called.
        """
        before = self.require_backward_grad_sync, self.reducer.in_no_sync
        self.require_backward_grad_sync, self.reducer.in_no_sync = False, True
        try:
            yield
        finally:
            self.require_backward_grad_sync, self.reducer.in_no_sync = before

    def register_comm_hook(self, state: Any, hook: Hook) -> None:
        """Average buckets by `hook(state, bucket)`: see `comm_hooks.py`. Torch's own will do, too.

        Raises:
            RuntimeError: there is one already.
        """
        if self.reducer.comm_hook is not None:
            raise RuntimeError("register_comm_hook can be called once only")
        self.reducer.comm_hook = (state, hook)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As any module's. Also where gradients are in shards: see ZeroRedundancyOptimizer."""
        super().zero_grad(set_to_none)
        self.reducer.clear()

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The bare module's state, keys without a prefix. `load_state_dict` takes the same."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The bare module's own, which finds its layers' versions in the state's `_metadata`.

        A state that torch's class saved, all keys with `module.` before them, will do as well.
        """
        if is_torchs(state_dict, "", self.module):
            metadata = getattr(state_dict, "_metadata", None)
            state_dict = OrderedDict(state_dict)
            if metadata is not None:
                vars(state_dict)["_metadata"] = metadata.copy()
            consume_prefix_in_state_dict_if_present(state_dict, "module.")
        return self.module.load_state_dict(state_dict, *args, **kwargs)

    def __getstate__(self) -> Any:
        raise TypeError(
            "a DistributedDataParallel cannot be copied or pickled: do that with its `module`, "
            "and wrap the copy"
        )

    def broadcast_state(self, source: int = 0) -> None:
        """Overwrite all ranks' parameters and buffers by those of one rank of the group."""
        broadcast_(self.module.parameters(), source, self.process_group)
        broadcast_(self.module.buffers(), source, self.process_group)

    # Uneven inputs: torch.distributed.algorithms.join.

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """A context for loops that are longer on some ranks than on others.

        A rank that has left its loop takes part in the others' communication, with zeros, until all
        have; then all get the parameters of a rank that was among the last.

        Args:
            divide_by_initial_world_size: False: divide by the number of ranks that have input. Not
                with a communication hook, which divides as it likes.
            enable: False: do nothing.
            throw_on_early_termination: raise RuntimeError on all ranks when the first has no more.
                With a SyncBatchNorm in the model it must be so, else ValueError is raised.
        """
        if enable and not throw_on_early_termination:
            check_forward(self.module)
        return Join(
            [self],
            enable,
            throw_on_early_termination,
            divide_by_initial_world_size=divide_by_initial_world_size,
        )

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What a rank without input does meanwhile. For `Join([model, optimizer])`."""
        self.reducer.divide_by_initial_world_size = kwargs.get("divide_by_initial_world_size", True)
        return Shadow(self, self.reducer)

    @property
    def join_device(self) -> torch.device:
        """Where `Join` puts its messages."""
        return self.device

    @property
    def join_process_group(self) -> Any:
        """Among whom."""
        return self.process_group or dist.group.WORLD


DDP = DistributedDataParallel
"""The name that most scripts use."""
