"""What a rank computes with: its GPU, and DataParallel, which takes all of them."""

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from .hooks import Hooks


def install(hooks: Hooks) -> None:
    """Listen to DataParallel being made, and to the first step."""
    watch = Devices(hooks)
    hooks.wrap(nn.DataParallel, "__init__", after=watch.on_data_parallel)
    hooks.before_step.append(watch.on_step)


class Devices:
    """Notes the GPU of the parameters, by the number that it has in the whole world."""

    def __init__(self, hooks: Hooks) -> None:
        self._recorder = hooks.recorder
        self._known: set[int] = set()

    def on_data_parallel(self, module: nn.DataParallel[Any], *_: Any, **__: Any) -> None:
        """`nn.DataParallel(...)` has been called."""
        devices = len(getattr(module, "device_ids", ()))
        self._recorder.record("data-parallel", devices=devices, **self._recorder.site())

    def on_step(self, optimizer: Optimizer, count: int) -> None:
        """See `Hooks.before_step`."""
        if count > 1:
            return
        parameters = (one for group in optimizer.param_groups for one in group["params"])
        for device in {one.device for one in parameters if one.device.type == "cuda"}:
            index = torch.cuda.current_device() if device.index is None else device.index
            if index not in self._known:
                self._known.add(index)
                properties = torch.cuda.get_device_properties(index)
                self._recorder.record(
                    "gpus", index=index, uuid=str(properties.uuid), name=properties.name
                )
