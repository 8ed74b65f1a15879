"""Batch normalisation over the batches of all ranks, on the CPU as well.

Plain BatchNorm normalises by the statistics of the batch it sees. On N ranks that is an N-th of the
batch, so training is not what one process with the whole batch does, and with small parts the
statistics are poor. Here the ranks combine their statistics in forward, and in backward the sums
through which each input changed everybody's statistics.

Sources: Ioffe, Szegedy, "Batch Normalization", 2015, https://arxiv.org/abs/1502.03167 (backward);
Chan, Golub, LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances",
1979 (combining). torch's SyncBatchNorm (torch/nn/modules/_functions.py) refuses CPU tensors.
"""

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules.batchnorm import _BatchNorm

M = TypeVar("M", bound=nn.Module)


class SyncBatchNorm(_BatchNorm):
    """BatchNorm over [batch, channels, ...] with the mean and variance over all ranks' batches.

    The ranks' batches may have unequal sizes, or none. A collective in forward and in backward,
    while training; in evaluation mode, and where there is no process group, it is plain BatchNorm.
    Arguments are BatchNorm's, and `process_group`: the ranks to share with, default all.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: dist.ProcessGroup | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002 - torch's name
        if input.dim() < 2:
            raise ValueError(f"expected [batch, channels, ...], found {input.dim()} dimensions")
        if input.size(1) != self.num_features:
            raise ValueError(f"expected {self.num_features} channels, found {input.size(1)}")

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Normalise [batch, channels, ...].

        Raises:
            ValueError: too few dimensions, other channels, or all ranks together have fewer than
                two values for each channel.
        """
        self._check_input_dim(input)
        if not (self.training and dist.is_available() and dist.is_initialized()):
            return super().forward(input)
        output, mean, variance, count = _Normalise.apply(  # type: ignore[no-untyped-call]  # torch has no types for it
            input, self.weight, self.bias, self.eps, self.process_group
        )
        if self.track_running_stats and self.running_mean is not None:
            self._follow(mean, variance * (count / (count - 1)))
        normalised: Tensor = output
        return normalised

    @torch.no_grad()
    def _follow(self, mean: Tensor, unbiased_variance: Tensor) -> None:
        """Move the running statistics towards this batch's."""
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked += 1
        # momentum None: the mean of all batches so far.
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased_variance.to(self.running_var.dtype), share)

    @classmethod
    def convert_sync_batchnorm(
        cls, module: nn.Module, process_group: dist.ProcessGroup | None = None
    ) -> nn.Module:
        """Replace each BatchNorm in a module by one of these, with the same parameters and buffers.

        Returns:
            The module, or its replacement where it is a BatchNorm itself.
        """
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            made = cls(
                module.num_features,
                module.eps,
                module.momentum,
                module.affine,
                module.track_running_stats,
                process_group,
            )
            made.weight, made.bias = module.weight, module.bias
            made.running_mean, made.running_var = module.running_mean, module.running_var
            made.num_batches_tracked = module.num_batches_tracked
            made.training = module.training
            return made
        for name, child in module.named_children():
            setattr(module, name, cls.convert_sync_batchnorm(child, process_group))
        return module


class _Normalise(torch.autograd.Function):
    """(input, weight, bias) -> (output, mean [C], biased variance [C], values per channel [])."""

    @staticmethod
    def forward(
        ctx: Any,
        input: Tensor,  # noqa: A002 - torch's name
        weight: Tensor | None,
        bias: Tensor | None,
        eps: float,
        group: dist.ProcessGroup | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        channels = input.size(1)
        # Half precision is too coarse for sums over a batch.
        wide = input.to(torch.promote_types(input.dtype, torch.float32))
        over = [dim for dim in range(input.dim()) if dim != 1]
        shape = [1, channels] + [1] * (input.dim() - 2)

        # This rank's count, means and sums of squared deviations; of none: zeros.
        mine = wide.new_zeros(2 * channels + 1)
        if input.numel():
            variance, mean = torch.var_mean(wide, dim=over, correction=0)
            mine[0] = count = input.numel() / channels
            mine[1 : channels + 1] = mean
            mine[channels + 1 :] = variance * count
        everybodys = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
        dist.all_gather(everybodys, mine, group=group)
        counts, means, squares = torch.stack(everybodys).split([1, channels, channels], dim=1)
        total = counts.sum()
        if total < 2:
            raise ValueError(
                f"batch statistics need at least 2 values for each channel, found {int(total)}"
            )
        mean = (counts * means).sum(0) / total
        variance = (squares + counts * (means - mean).square()).sum(0) / total
        scale = (variance + eps).rsqrt()

        normal = (wide - mean.view(shape)) * scale.view(shape)
        output = normal
        if weight is not None:
            output = output * weight.view(shape)
        if bias is not None:
            output = output + bias.view(shape)
        ctx.save_for_backward(normal, scale, weight, total)
        ctx.group, ctx.over, ctx.shape, ctx.dtype = group, over, shape, input.dtype
        ctx.mark_non_differentiable(mean, variance, total)
        return output.to(input.dtype), mean, variance, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        normal, scale, weight, total = ctx.saved_tensors
        gradient = gradient.to(normal.dtype)
        # [2 C]: this rank's sums of dL/dy and of dL/dy * x^ are the gradients of bias and weight.
        sums = torch.cat([gradient.sum(ctx.over), (gradient * normal).sum(ctx.over)])
        bias_gradient, weight_gradient = sums.clone().chunk(2)
        # Each input moved the mean and the variance that all ranks normalised by.
        dist.all_reduce(sums, group=ctx.group)
        mean_of_gradient, mean_of_product = (sums / total).view(2, *ctx.shape)
        factor = scale if weight is None else scale * weight
        input_gradient = (gradient - mean_of_gradient - normal * mean_of_product) * factor.view(
            ctx.shape
        )
        if weight is None:
            return input_gradient.to(ctx.dtype), None, None, None, None
        return (
            input_gradient.to(ctx.dtype),
            weight_gradient.to(weight.dtype),
            bias_gradient.to(weight.dtype),
            None,
            None,
        )
