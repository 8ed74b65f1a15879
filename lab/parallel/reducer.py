"""The reducer: averages gradients over the ranks while backward still computes the next ones.

What happens in one backward:

1. `_begin`, when the first gradient reaches an output of forward: arranges that `_finish` is called
   when the whole backward has ended.
2. `_gradient_ready`, for each parameter, right after autograd put its gradient into `grad`: one
   less that its bucket waits for. Complete buckets are sent, in one fixed order: collectives match
   by the order of the calls, and gradients may become ready in another order on another rank. On
   the CPU so many at a time: see `UNDER_WAY`.
3. `_finish`: looks for parameters that got no gradient, waits for the buckets in the same order,
   and makes each `grad` a view of its bucket, which now holds the mean.

Source: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training", VLDB
2020, https://arxiv.org/abs/2006.15704, and torch/csrc/distributed/c10d/reducer.cpp.
"""

import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable

from lab.parallel.buckets import Bucket, default_cap_mb, make_buckets
from lab.parallel.comm_hooks import Hook, Mean, Pending, mean_of
from lab.parallel.graph import leaves_of, tensors_in
from lab.parallel.reducer_errors import no_gradient, one_too_many
from lab.parallel.streams import gradient_streams

UNDER_WAY = 2
"""Buckets that travel at a time, where computing and sending share the cores.

The next one waits for the first of them, and backward with it. That costs nothing that would not be
waited for at the end. It leaves the cores to what everybody waits for then: ranks that compute
ahead keep each other's threads from sending (`lab bench ddp --only step --rate 1gbit`).
"""


class Reducer:
    """Owns the buckets and the hooks of one model's parameters."""

    def __init__(
        self,
        named_parameters: Sequence[tuple[str, nn.Parameter]],
        group: dist.ProcessGroup | None,
        *,
        bucket_cap_mb: float | None,
        mean: Mean,
        find_unused_parameters: bool,
        static_graph: bool,
        hang_guard: bool,
    ) -> None:
        """Set up for parameters that need gradients, in order of registration."""
        self.group = group
        self.mean = mean
        self.divisor = dist.get_world_size(group)
        """What sums are divided by; `join` may lower it to the ranks that still have input."""
        self.divide_by_initial_world_size = True
        self.in_no_sync = False
        self.comm_hook: tuple[Any, Hook] | None = None
        self.find_unused_parameters = find_unused_parameters
        self.static_graph = static_graph
        self.hang_guard = hang_guard
        self.names = [name for name, _ in named_parameters]
        self.parameters = [parameter for _, parameter in named_parameters]
        # Static graph: what the first backward found.
        self._gradients_each: list[int] | None = None
        self._used: list[bool] | None = None

        device = self.parameters[0].device
        self._streams = gradient_streams(device)
        self._shares_cores = device.type == "cpu"  # a wait would hold up the stream elsewhere
        self._expecting = False
        self._begun = False
        self._unfinished: list[str] = []
        self._unused: set[int] | None = None
        if bucket_cap_mb is None:
            bucket_cap_mb = default_cap_mb(self.parameters)
        self.bucket_cap_mb = bucket_cap_mb
        self.set_buckets(make_buckets(self.parameters, bucket_cap_mb))

        # The hooks must not keep the reducer alive: a model can be wrapped anew.
        this = weakref.ref(self)

        def hook_of(number: int) -> Callable[[Tensor], None]:
            def hook(_: Tensor) -> None:
                if (reducer := this()) is not None:
                    reducer._gradient_ready(number)

            return hook

        handles = [
            parameter.register_post_accumulate_grad_hook(hook_of(number))
            for number, parameter in enumerate(self.parameters)
        ]
        weakref.finalize(self, _remove, handles)

    def set_buckets(self, buckets: Sequence[Bucket]) -> None:
        """Use these from the next backward on: all parameters, in the order of sending."""
        self.buckets = buckets
        self._bucket_of = {
            number: bucket.index() for bucket in buckets for number in bucket.numbers
        }
        self._start_over()

    def clear(self) -> None:
        """Forget gradients that are not in `grad`: `zero_grad` was called."""
        for bucket in self.buckets:
            bucket.clear()

    # Before backward.

    def check_finished(self) -> None:
        """Before a forward.

        Raises:
            RuntimeError: buckets of the last backward were sent, and others were not.
        """
        if self._unfinished or self._sent:
            why = f": no gradient for {', '.join(self._unfinished)}" if self._unfinished else ""
            raise RuntimeError(f"rank {self._rank}: the last backward did not finish{why}")

    def expect_backward(self, outputs: Any) -> None:
        """After a forward: its backward is to be averaged."""
        self._start_over()
        tensors = [tensor for tensor in tensors_in(outputs) if tensor.requires_grad]
        if self.find_unused_parameters and not self.static_graph:
            self._note_unused(tensors)
        for tensor in tensors:
            # A leaf would keep the hook for ever. Without it, a parameter's own hook begins.
            if tensor.grad_fn is not None:
                tensor.register_hook(lambda _: self._begin())
        self._expecting = True

    def expect_nothing(self) -> None:
        """After a forward in no_sync: its backward only accumulates."""
        self._expecting = False

    def _note_unused(self, outputs: Sequence[Tensor]) -> None:
        """Find what the outputs do not depend on, so that its buckets need not wait for the end."""
        leaves = leaves_of(outputs)
        if leaves is None:
            self._unused = set()  # not to be known: all that is missing waits for the end
            return
        unused = {number for number, p in enumerate(self.parameters) if p not in leaves}
        # One backward may follow after several forwards.
        self._unused = unused if self._unused is None else self._unused & unused

    def _start_over(self) -> None:
        self._begun = False
        self._fired = [0] * len(self.parameters)
        self._wanted = self._gradients_each or [1] * len(self.parameters)
        """How many gradients of each parameter make it ready."""
        self._waiting_for = [set(bucket.numbers) for bucket in self.buckets]
        self._sent: list[Pending] = []
        self._received = 0
        """How many of them have been waited for."""

    # During backward.

    def _begin(self) -> None:
        if self._begun:
            return
        self._begun = True
        self._expecting = True
        if self.in_no_sync:
            warnings.warn(
                "backward is inside no_sync() but forward was outside: gradients are averaged all "
                "the same. Put both inside",
                stacklevel=2,
            )
        # Reentrant checkpointing runs backwards inside the backward; autograd calls this at the end
        # of the one during which it is queued, so it is queued by the outputs: by the outermost.
        Variable._execution_engine.queue_callback(self._finish)
        if self._gradients_each is not None:
            unused = {number for number, count in enumerate(self._gradients_each) if not count}
        else:
            unused = self._unused or set()
        for number in unused:
            self._waiting_for[self._bucket_of[number]].discard(number)
        # Nothing is sent here: torch.autograd.grad comes by as well, and ends without gradients.

    def _gradient_ready(self, number: int) -> None:
        if not self._expecting:
            return
        if not self._begun:  # the loss does not depend on the outputs, only on parameters
            self._begin()
        name, gradient = self.names[number], self.parameters[number].grad
        assert gradient is not None
        if gradient.layout != torch.strided:
            raise TypeError(
                f"the gradient of {name} is sparse and buckets hold dense ones: "
                "make its layer with sparse=False"
            )
        self._streams.note()
        bucket = self._bucket_of[number]
        self._fired[number] += 1
        unforeseen = self._gradients_each and self._fired[number] > self._gradients_each[number]
        if bucket < len(self._sent) or unforeseen:
            raise RuntimeError(one_too_many(self._rank, name, self.static_graph))
        # A static graph's first backward only counts: which gradient is the last is not known yet.
        first_of_static = self.static_graph and self._gradients_each is None
        if self._fired[number] >= self._wanted[number] and not first_of_static:
            self._waiting_for[bucket].discard(number)
            while len(self._sent) < len(self.buckets) and not self._waiting_for[len(self._sent)]:
                self._send_next()

    def _send_next(self) -> None:
        if self._shares_cores and len(self._sent) - self._received == UNDER_WAY:
            self._receive_next()
        bucket = self.buckets[len(self._sent)]
        self._streams.join()
        bucket.pack()
        if self.comm_hook is None:
            self._sent.append(mean_of(bucket, self.group, self.mean, self.divisor))
        else:
            state, hook = self.comm_hook
            self._sent.append(hook(state, bucket))

    # After backward.

    def _finish(self) -> None:
        self._begun = False
        if not any(self._fired):
            return  # not a backward but torch.autograd.grad: it leaves `grad` alone
        may_miss = self.find_unused_parameters or (self.static_graph and self._used is None)
        if self._gradients_each is not None:
            may_miss = False
        missing = [
            number
            for number, (fired, wanted) in enumerate(zip(self._fired, self._wanted, strict=True))
            if fired < wanted
        ]
        if missing and not may_miss:
            self._unfinished = [self.names[number] for number in missing]
            if self.hang_guard:
                frozen = [self.names[n] for n in missing if not self.parameters[n].requires_grad]
                changed = self._gradients_each is not None
                raise RuntimeError(no_gradient(self._rank, self._unfinished, frozen, changed))
            return
        while len(self._sent) < len(self.buckets):
            self._send_next()
        self._receive()
        if self.static_graph:
            self._gradients_each = self._fired
        self._expecting = False
        self._unused = None
        self._start_over()

    def _receive(self) -> None:
        """Wait for all buckets, and for who used what where that may differ between ranks."""
        used, work = self._used, None
        if self._exchanges_used:
            used_flags = torch.zeros(len(self.parameters), dtype=torch.uint8)
            used_flags[[number for bucket in self.buckets for number in bucket.present]] = 1
            used_flags = used_flags.to(self.parameters[0].device)
            work = dist.all_reduce(
                used_flags, op=dist.ReduceOp.MAX, group=self.group, async_op=True
            )
        while self._received < len(self.buckets):
            self._receive_next()
        if work is not None:
            work.wait()
            used = [bool(flag) for flag in used_flags.tolist()]
        if self.static_graph:
            self._used = used
        for bucket in self.buckets:
            bucket.unpack(used)

    def _receive_next(self) -> None:
        self.buckets[self._received].set_buffer(self._sent[self._received].wait())
        self._received += 1

    @property
    def _exchanges_used(self) -> bool:
        return self._used is None if self.static_graph else self.find_unused_parameters

    @property
    def _rank(self) -> int:
        return dist.get_rank(self.group)

    # For `join`.

    def shadow_backward(self) -> None:
        """Do the communication of a backward with zeros, for a rank that has no input left."""
        self._start_over()
        for parameter in self.parameters:
            parameter.grad = None
        self.clear()
        while len(self._sent) < len(self.buckets):
            self._send_next()
        self._receive()
        self._start_over()


def _remove(handles: Sequence[Any]) -> None:
    for handle in handles:
        handle.remove()
