"""As whom the rank has joined which world: the script may have said so itself."""

from typing import Any

import torch.distributed as dist
from torch.distributed import distributed_c10d

from .hooks import Hooks


def install(hooks: Hooks) -> None:
    """Listen to init_process_group."""
    if not dist.is_available():
        return

    def joined(*_: Any, **__: Any) -> None:
        place = {"rank": dist.get_rank(), "size": dist.get_world_size()}
        hooks.recorder.record("world", **place, **hooks.recorder.site())

    hooks.wrap(distributed_c10d, "init_process_group", after=joined)
    dist.init_process_group = distributed_c10d.init_process_group
