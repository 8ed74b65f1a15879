"""Checks of what DistributedDataParallel is constructed with."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

WITHOUT_EFFECT = frozenset(
    {"dim", "check_reduction", "batched_grad_copy", "skip_all_reduce_unused_params"}
)
"""Arguments of torch's that change no result: how it copies, and what it no longer uses."""
INSTEAD = {
    "bucket_cap_mb_list": "give one bucket_cap_mb",
    "delay_all_reduce_named_params": "leave it out",
    "param_to_hook_all_reduce": "leave it out",
    "mixed_precision": "use torch.autocast in forward, or FullyShardedDataParallel",
    "device_mesh": "pass process_group=mesh.get_group()",
}
"""Arguments of torch's that are not supported, and what to do."""


def check_torchs(arguments: Mapping[str, Any]) -> None:
    """Look at arguments that only torch's class has.

    Raises:
        ValueError: one that is not supported has a value.
        TypeError: torch's has no such argument either.
    """
    for name, value in arguments.items():
        if name in INSTEAD:
            if value is not None:
                raise ValueError(f"{name} is not supported: {INSTEAD[name]}")
        elif name not in WITHOUT_EFFECT:
            raise TypeError(f"DistributedDataParallel has no argument {name!r}")


def device_of(module: nn.Module, trained: Sequence[tuple[str, nn.Parameter]]) -> torch.device:
    """The one device of the parameters, after checking that they can be trained this way."""
    for name, parameter in module.named_parameters():
        if isinstance(parameter, nn.parameter.UninitializedParameter):
            raise ValueError(f"{name} has no shape yet: run a forward of the lazy module first")
    if not trained:
        raise ValueError("no parameter needs a gradient: there is nothing to average")
    for name, parameter in trained:
        if parameter.is_complex():
            raise TypeError(
                f"{name} is complex, and the mean is of real numbers: "
                "keep it as real ones and use torch.view_as_complex in forward"
            )
    devices = {str(parameter.device): parameter.device for _, parameter in trained}
    if len(devices) > 1:
        raise ValueError(f"the parameters are on several devices: {', '.join(sorted(devices))}")
    return next(iter(devices.values()))


def check_device_ids(
    device: torch.device,
    device_ids: Sequence[int | torch.device] | None,
    output_device: int | torch.device | None,
) -> None:
    """Make sure that they are None, or the one device of the model."""
    for given in [*(device_ids or ()), *([] if output_device is None else [output_device])]:
        wanted = given if isinstance(given, torch.device) else torch.device("cuda", given)
        if wanted != device:
            raise ValueError(f"the model is on {device}, but device_ids or output_device: {wanted}")
    if device_ids is not None and len(device_ids) != 1:
        raise ValueError("device_ids must be None or name one device: one process for each")
