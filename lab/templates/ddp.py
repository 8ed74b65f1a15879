"""Data parallel: every rank has the whole model, gradients are averaged during backward."""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_


def wrap(model: nn.Module, device: torch.device) -> nn.Module:
    """Give every rank the weights of rank 0; from now on backward averages gradients."""
    return DistributedDataParallel(model, device_ids=[device] if device.type == "cuda" else None)


def exchanging(model: nn.Module, wanted: bool) -> AbstractContextManager[None]:
    """Whether the gradients are averaged. Forward must be inside as well: it is where DDP looks."""
    assert isinstance(model, DistributedDataParallel)
    return nullcontext() if wanted else model.no_sync()


def clip_gradients(model: nn.Module, limit: float) -> torch.Tensor:
    """Bring the gradient's norm down to a limit; the norm it had. NaN raises, before it spreads."""
    return clip_grad_norm_(model.parameters(), limit, error_if_nonfinite=True)


def leave() -> None:
    """Leave the process group."""
    dist.destroy_process_group()
