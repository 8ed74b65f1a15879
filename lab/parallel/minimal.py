"""Data-parallel training on one page: read this first.

Every rank holds a replica of the whole model and sees its own part of each batch. Two things
keep the replicas equal to one process that sees the whole batch:

1. they begin equal: rank 0's parameters and buffers are broadcast at construction;
2. they stay equal: after each backward, gradients are averaged over the ranks, so that every
   optimiser takes the same step. The average of the ranks' gradients is the gradient of the
   whole batch, because the loss is a mean and the parts have equal size.

    model = MinimalDDP(model)
    for inputs, targets in loader:       # each rank its own part: DistributedSampler
        optimizer.zero_grad()
        loss_fn(model(inputs), targets).backward()
        model.sync_grads()
        optimizer.step()

What is missing here is speed: each gradient travels by itself, and only when backward has ended.
torch's DistributedDataParallel packs gradients into buckets and sends them while backward still
runs: Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel Training",
VLDB 2020, https://arxiv.org/abs/2006.15704.
"""

import copy
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


class MinimalDDP(nn.Module):
    """A replica of `module` on every rank of `group`.

    The module must have the same parameters in the same order on every rank, on a device that the
    group's backend can send from (gloo: CPU, nccl: CUDA). Any shapes and dtypes. `state_dict` and
    `load_state_dict` are the module's own, without a prefix, so checkpoints fit the bare model.

    Buffers are equal at the start only. Those that follow the batches a rank saw, like BatchNorm's
    running statistics, drift apart afterwards: save rank 0's.
    """

    def __init__(self, module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
        """Overwrite every rank's parameters and buffers with those of the group's rank 0."""
        super().__init__()
        self.module = module
        self.group = group
        for tensor in chain(module.parameters(), module.buffers()):
            message = tensor.detach().contiguous()  # a copy only where the layout is another
            dist.broadcast(message, group=group, group_src=0)
            tensor.detach().copy_(message)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The module's own forward, on this rank's part of the batch. No communication."""
        return self.module(*args, **kwargs)

    def sync_grads(self) -> None:
        """Average the gradients over the ranks: after backward, before the optimiser's step."""
        all_reduce_grads_(self.module, self.group)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The bare module's state, keys without a prefix."""
        return self.module.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a state of the bare module. Every rank must load the same."""
        return self.module.load_state_dict(*args, **kwargs)


def all_reduce_grads_(module: nn.Module, group: dist.ProcessGroup | None = None) -> None:
    """Replace each parameter's gradient by its mean over the ranks, in place.

    A missing gradient counts as zeros and is one of the mean afterwards: a layer that only some
    ranks used must still be averaged on all of them, and all ranks must make the same calls in
    the same order. (torch's DDP leaves a gradient None that is missing on every rank.)

    Sums, then divides, as one process that accumulates the ranks' batches would. Half-precision
    gradients are summed in float32, where a sum of float16 values cannot overflow.

    Args:
        module: parameters of any shape and dtype; those that need no gradient are left alone.
        group: the ranks to average over; default all.

    Raises:
        ValueError: a gradient is sparse. Raised before anything is sent.
    """
    named = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    for name, parameter in named:
        if parameter.grad is not None and parameter.grad.layout != torch.strided:
            raise ValueError(
                f"the gradient of {name} is sparse and an all-reduce needs dense ones: "
                "make its layer with sparse=False"
            )
    world_size = dist.get_world_size(group)
    for _, parameter in named:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        wide = torch.promote_types(parameter.grad.dtype, torch.float32)
        mean = parameter.grad.detach().to(wide).contiguous()  # the gradient itself where it can be
        dist.all_reduce(mean, op=dist.ReduceOp.SUM, group=group)
        parameter.grad.detach().copy_(mean.div_(world_size))


def manual_all_reduce_matches_single_process(
    module: nn.Module,
    loss_fn: Callable[[Tensor, Tensor], Tensor],
    inputs: Tensor,
    targets: Tensor,
    group: dist.ProcessGroup | None = None,
    tolerance: float = 1e-3,
) -> float:
    """Compare the averaged gradients of the ranks' batches with those of the one big batch.

    Every rank calls this with its own batch. The left side is what data parallelism computes:
    backward on the own batch, then the mean over the ranks. The right side is what one process
    would compute: backward on the concatenation of all batches. In float32 about 1e-8 lies
    between them, because sums are taken in another order. The module's own gradients stay as
    they are.

    Args:
        module: the bare model, in the same state on every rank. No dropout and no batch
            statistics: with those, the two sides differ by design.
        loss_fn: the mean loss of (outputs, targets), a scalar.
        inputs: this rank's batch, [batch, ...], the same shape and dtype on every rank.
        targets: [batch, ...], likewise.
        group: the ranks that take part; default all.
        tolerance: the largest difference that is still equality.

    Returns:
        The largest absolute difference over all parameters and ranks, the same on every rank.

    Raises:
        ValueError: the ranks' batches have unequal sizes, so the mean of their gradients is not
            the gradient of the concatenation. Raised on every rank.
        ArithmeticError: the difference is above the tolerance or not a number; on every rank.
    """
    replica = copy.deepcopy(module)

    def gradients(inputs: Tensor, targets: Tensor, *, average: bool) -> list[Tensor]:
        replica.zero_grad(set_to_none=True)
        loss_fn(replica(inputs), targets).backward()
        if average:
            all_reduce_grads_(replica, group)
        trained = [p for p in replica.parameters() if p.requires_grad]
        return [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]

    sizes = _gather(torch.tensor([len(inputs)], device=inputs.device), group)
    if len(sizes.unique()) > 1:
        raise ValueError(f"the ranks' batches must have equal sizes, found {sizes.tolist()}")
    averaged = gradients(inputs, targets, average=True)
    whole = gradients(_gather(inputs, group), _gather(targets, group), average=False)

    pairs = zip(averaged, whole, strict=True)
    worst = torch.cat([(a - b).abs().float().flatten() for a, b in pairs]).max().reshape(1)
    # A MAX over the ranks may drop a NaN; it never drops infinity.
    worst = torch.nan_to_num(worst, nan=float("inf"), posinf=float("inf"))
    dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=group)
    difference = float(worst)
    if not difference <= tolerance:
        raise ArithmeticError(
            f"averaged gradients differ from the one batch's by {difference:.1e}, "
            f"tolerance {tolerance:.0e}: are the parameters equal on every rank?"
        )
    return difference


def fsdp_round_trip_sketch(module: nn.Module, group: dist.ProcessGroup | None = None) -> bool:
    """What fully sharded data parallelism does to weights: flatten, pad, slice; gather, unpad.

    Each rank keeps one N-th of the parameters, in one flat piece, and gets the rest from the others
    just before it needs them. Nothing is computed on the way, so it must be bitwise what it was.
    Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel", VLDB 2023,
    https://arxiv.org/abs/2304.11277.

    Args:
        module: parameters of any shapes and one dtype, the same on every rank. Left as they are.
        group: the ranks that share them; default all.

    Returns:
        Whether this rank got back every bit, the sign of zeros and NaNs included.

    Raises:
        ValueError: the parameters have several dtypes, which one flat tensor cannot hold.
    """
    parameters = [parameter.detach() for parameter in module.parameters()]
    dtypes = {str(parameter.dtype) for parameter in parameters}
    if len(dtypes) != 1:
        raise ValueError(f"one flat tensor holds one dtype, found {', '.join(sorted(dtypes))}")
    world_size, rank = dist.get_world_size(group), dist.get_rank(group)

    flat = torch.cat([parameter.reshape(-1) for parameter in parameters])
    padding = -len(flat) % world_size  # zeros at the end, so that all slices are equally long
    padded = torch.cat([flat, flat.new_zeros(padding)])
    mine = padded.chunk(world_size)[rank].clone()  # all that a rank keeps: ceil(P / N) elements

    gathered = _gather(mine, group)
    parts = gathered[: len(flat)].split([parameter.numel() for parameter in parameters])
    pairs = zip(parts, parameters, strict=True)
    restored = [part.view(parameter.shape) for part, parameter in pairs]
    bits = torch.cat([part.reshape(-1) for part in restored]).view(torch.uint8)
    return torch.equal(bits, flat.view(torch.uint8))


def _gather(tensor: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Concatenate the ranks' tensors of equal shape along the first dimension, in rank order."""
    tensor = tensor.contiguous()
    parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, tensor, group=group)
    return torch.cat(parts)
