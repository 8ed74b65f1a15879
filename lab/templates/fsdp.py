"""Fully sharded: every rank keeps a part of each parameter, its gradient and its moments."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grad_norm_


def wrap(model: nn.Module, device: torch.device) -> nn.Module:
    """Give every rank the weights of rank 0, then leave it its part of them."""
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), src=0)  # unlike DDP, fully_shard does not do this
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    # A unit is gathered before it computes and freed after it: one for each block, so that only
    # one or two blocks are whole at a time, and one for the rest. Inner ones first.
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    for block in (block for blocks in reversed(lists) for block in blocks):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


@contextmanager
def exchanging(model: nn.Module, wanted: bool) -> Iterator[None]:
    """Whether gradients are averaged and sharded, or stay whole to be added to."""
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(wanted)
    try:
        yield
    finally:  # also where the model raised: the next backward must not stay alone unnoticed
        model.set_requires_gradient_sync(True)


def clip_gradients(model: nn.Module, limit: float) -> torch.Tensor:
    """Bring the gradient's norm down to a limit; the norm it had. NaN raises, before it spreads.

    It is that of the whole gradient. To read it is a collective, so all ranks do it here, rather
    than the one that prints.
    """
    norm = clip_grad_norm_(model.parameters(), limit, error_if_nonfinite=True)
    assert isinstance(norm, DTensor)
    return norm.full_tensor()


def leave() -> None:
    """Leave the process group.

    DTensor's caches keep its threads beyond that, and gloo's may abort a Python that takes itself
    apart (torch 2.13): with gloo the process ends before.
    """
    gloo = dist.get_backend() == "gloo"
    dist.destroy_process_group()
    if gloo:
        sys.stdout.flush()
        os._exit(0)
