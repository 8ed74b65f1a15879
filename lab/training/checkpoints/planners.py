"""What torch.distributed.checkpoint takes from a rank and gives it back: chunks, and plain data."""

import io
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex

from lab.training.checkpoints.chunks import Chunks

State = dict[str, Chunks | bytes]
"""What this rank saves, by names: its parts of tensors, and all else as `packed` gives it."""


def packed(value: Any) -> bytes:
    """Plain data as bytes: numbers, texts, tensors, and containers of these.

    Raises:
        ValueError: there is something else in it.
    """
    file = io.BytesIO()
    try:
        torch.save(value, file)
        unpacked(file.getvalue())
    except Exception as error:
        raise ValueError(
            f"a checkpoint holds plain data only, and this is more: {value!r:.200}"
        ) from error
    return file.getvalue()


def unpacked(data: bytes) -> Any:
    """What was packed. A pickle that would run code is refused."""
    return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)


class SavePlanner(DefaultSavePlanner):
    """Takes a flat state of chunks and bytes."""

    def set_up_planner(
        self, state_dict: State, storage_meta: Any = None, is_coordinator: bool = False
    ) -> None:
        self.state_dict = state_dict
        self.is_coordinator = is_coordinator
        # The nested state that torch's own tools make of it.
        self.mappings = {
            name: ("model", name.removeprefix("model.")) if name.startswith("model.") else (name,)
            for name in state_dict
        }

    def lookup_object(self, index: MetadataIndex) -> Any:
        value = self.state_dict[index.fqn]
        return value.__get_tensor_shard__(index) if isinstance(value, Chunks) else value

    def transform_object(self, write_item: Any, object: Any) -> Any:  # noqa: A002 - torch's name
        return io.BytesIO(object) if isinstance(object, bytes) else object


class LoadPlanner(DefaultLoadPlanner):
    """Fills a flat state of chunks; objects are plain data or refused."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def set_up_planner(
        self,
        state_dict: dict[str, Any],
        metadata: Metadata | None = None,
        is_coordinator: bool = False,
    ) -> None:
        self.state_dict = state_dict
        self.metadata = metadata
        self.is_coordinator = is_coordinator

    def lookup_tensor(self, index: MetadataIndex) -> Tensor:
        tensor: Tensor = self.state_dict[index.fqn].__get_tensor_shard__(index)
        return tensor

    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = unpacked(value.getvalue())
