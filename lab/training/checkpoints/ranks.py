"""The ranks that save and load together: what one knows is told to all, errors included."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import torch.distributed as dist

from lab.errors import LabError

T = TypeVar("T")


class NotSharedError(LabError):
    """A folder is another one for a rank than for rank 0. Raised on all ranks."""


class Ranks:
    """Those of a group that can carry Python objects, or this process alone."""

    def __init__(self, group: dist.ProcessGroup | None) -> None:
        """`group` None: there is no other rank."""
        self.group = group
        self.rank = 0 if group is None else dist.get_rank(group)
        self.size = 1 if group is None else dist.get_world_size(group)

    def of_first(self, make: Callable[[], T]) -> T:
        """What `make` gives on rank 0, or raises there. A collective."""
        if self.group is None:
            return make()
        answer: list[Any] = [None, None]
        if self.rank == 0:
            try:
                answer[0] = make()
            except Exception as error:  # noqa: BLE001 - all ranks raise it
                answer[1] = error
        dist.broadcast_object_list(answer, group=self.group, group_src=0)
        if answer[1] is not None:
            raise answer[1]
        value: T = answer[0]
        return value

    def of_each(self, make: Callable[[], T]) -> T:
        """What `make` gives on this rank; what it raises on one is raised on all. A collective."""
        value, error = None, None
        try:
            value = make()
        except Exception as raised:  # noqa: BLE001 - all ranks raise it
            error = raised
        for found in self.all(error):
            if found is not None:
                raise found
        return cast("T", value)

    def all(self, value: T) -> list[T]:
        """Every rank's. A collective."""
        if self.group is None:
            return [value]
        values: list[Any] = [None] * self.size
        dist.all_gather_object(values, value, group=self.group)
        return values

    def check_shared(self, path: Path) -> None:
        """Make sure that all ranks see what rank 0 sees. A collective.

        Raises:
            NotSharedError: they do not share the file system. The same on all ranks.
        """
        views = self.all((os.path.lexists(path), socket.gethostname()))
        blind = [rank for rank, (seen, _) in enumerate(views) if not seen]
        if blind and 0 not in blind:  # rank 0 sees it no more: it has been removed
            raise NotSharedError(
                f"rank {blind[0]} on {views[blind[0]][1]} does not see {path.parent} of rank 0 on "
                f"{views[0][1]}: a checkpoint needs one folder that all nodes share"
            )
