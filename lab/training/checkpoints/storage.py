"""The files of one checkpoint, through torch.distributed.checkpoint: one a rank, written at once.

What is ours: checksums, taken while the files are written; a manifest in JSON, which is read in
place of torch's pickled index; and that nothing but plain data is ever unpickled.

`python -m torch.distributed.checkpoint.format_utils dcp_to_torch step-00000100 state.pt` makes one
file of it, whose `["model"]` the bare model's `load_state_dict` takes.
"""

import hashlib
import io
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from errno import ENOTCONN
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import (
    FileSystem,
    FileSystemReader,
    FileSystemWriter,
    _StorageInfo,
)
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from lab.training.checkpoints import folder as folders
from lab.training.checkpoints.files import atomic_file
from lab.training.checkpoints.manifest import (
    NAME,
    BadCheckpointError,
    Chunk,
    Extent,
    FileEntry,
    Manifest,
    TensorEntry,
    check_file,
)
from lab.training.checkpoints.planners import LoadPlanner, SavePlanner, State


def write(
    state: State, new: Path, about: Mapping[str, Any], group: dist.ProcessGroup | None
) -> None:
    """Write a checkpoint and let it be there. A collective.

    Args:
        state: this rank's part. What several ranks have under one name is saved once.
        new: the folder that `folder.begin` made.
        about: what the manifest says beside what is in the files.
        group: the ranks; None: this process alone.

    Raises:
        OSError: a rank could not write; the same on all ranks.
    """
    with _in_words(OSError), _quiet():
        save(
            state,
            storage_writer=_Writer(new, about),
            planner=SavePlanner(),
            process_group=group,
            no_dist=group is None,
        )


def read(
    state: dict[str, Any], path: Path, manifest: Manifest, group: dist.ProcessGroup | None
) -> None:
    """Read a checkpoint into what this rank holds. A collective.

    Args:
        state: the chunks to fill, and None where an object is to come, by names.
        path: the checkpoint's folder.
        manifest: of it.
        group: the ranks; None: this process alone.

    Raises:
        BadCheckpointError: it holds other things than its manifest says, or code.
    """
    with _in_words(BadCheckpointError), _quiet():
        load(
            state,
            storage_reader=_Reader(path, manifest),
            planner=LoadPlanner(),
            process_group=group,
            no_dist=group is None,
        )


class _Stream(io.RawIOBase):
    """A file that is written, and its checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.checksum = hashlib.sha256()
        self.count = 0
        self.error: OSError | None = None

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        try:
            written = self.file.write(data)
        except OSError as error:
            self.error = error
            raise
        self.checksum.update(data)
        self.count += written
        return written

    def tell(self) -> int:
        return self.count

    def flush(self) -> None:
        if not self.closed:
            self.file.flush()

    def fileno(self) -> int:
        self.flush()  # torch asks for it to call fsync, which knows nothing of Python's buffer
        return self.file.fileno()


class _Files(FileSystem):
    """Where the writer writes; keeps what the manifest says of each file."""

    def __init__(self) -> None:
        self.written: dict[str, FileEntry] = {}

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[io.IOBase]:
        assert mode == "wb"
        with Path(path).open("wb") as file:
            stream = _Stream(file)
            try:
                yield stream
            except Exception as error:  # torch.save makes another of a disk that is full
                raise stream.error or error from error
        name = Path(path).name.removesuffix(".tmp")
        self.written[name] = FileEntry(stream.count, stream.checksum.hexdigest())


class _Writer(FileSystemWriter):
    """A file for each rank, then the manifest, then the name."""

    def __init__(self, new: Path, about: Mapping[str, Any]) -> None:
        super().__init__(new, overwrite=False)
        self.new = new
        self.about = about
        self.fs = self.files = _Files()

    def write_data(self, plan: Any, planner: Any) -> Future[list[WriteResult]]:
        """This rank's file. Its checksum travels to rank 0 as one more result."""
        results = super().write_data(plan, planner).wait()
        for name, entry in self.files.written.items():
            results.append(WriteResult(MetadataIndex(name), entry.bytes, entry))
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On rank 0, when all ranks have written.

        Raises:
            OSError: it is not all of them, since a rank without a group takes itself for the only.
        """
        if len(results) != self.about["world_size"]:
            raise OSError(ENOTCONN, "the process group was left before it was saved: call finish()")
        files, data = {}, []
        for result in (result for of_rank in results for result in of_rank):
            if isinstance(result.storage_data, FileEntry):
                files[result.index.fqn] = result.storage_data
            else:
                data.append(result)
        super().finish(metadata, [data])
        files |= self.files.written  # with torch's index
        for name, entry in files.items():
            check_file(self.new, name, entry, read=False)
        manifest = Manifest(
            **self.about, **_contents(metadata, data), files=dict(sorted(files.items()))
        )
        with atomic_file(self.new / NAME) as file:
            file.write(manifest.text().encode())
        folders.commit(self.new)


def _contents(metadata: Metadata, results: list[WriteResult]) -> dict[str, Any]:
    """What the manifest says of tensors and objects."""
    extents = {
        (result.index.fqn, result.index.offset): Extent(
            result.storage_data.relative_path,
            result.storage_data.offset,
            result.storage_data.length,
        )
        for result in results
    }
    tensors, objects = {}, {}
    for name, entry in sorted(metadata.state_dict_metadata.items()):
        if isinstance(entry, TensorStorageMetadata):
            chunks = [
                Chunk(list(chunk.offsets), list(chunk.sizes), extents[name, chunk.offsets])
                for chunk in entry.chunks
            ]
            dtype = str(entry.properties.dtype).removeprefix("torch.")
            tensors[name] = TensorEntry(list(entry.size), dtype, chunks)
        else:
            objects[name] = extents[name, None]
    return {"tensors": tensors, "objects": objects}


class _Reader(FileSystemReader):
    """Knows from the manifest what is where."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        super().__init__(path)
        self.manifest = manifest

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """What torch's index would say."""
        entries: dict[str, Any] = {}
        places = {}
        for name, entry in self.manifest.tensors.items():
            entries[name] = TensorStorageMetadata(
                TensorProperties(dtype=dtype_called(entry.dtype)),
                torch.Size(entry.shape),
                [
                    ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes))
                    for chunk in entry.chunks
                ],
            )
            for chunk in entry.chunks:
                places[MetadataIndex(name, chunk.offsets)] = chunk.extent
        for name, extent in self.manifest.objects.items():
            entries[name] = BytesStorageMetadata()
            places[MetadataIndex(name)] = extent
        storage = {
            index: _StorageInfo(extent.file, extent.start, extent.bytes)
            for index, extent in places.items()
        }
        return Metadata(entries, storage_data=storage)


def dtype_called(name: str) -> torch.dtype:
    """`float32` and so on.

    Raises:
        BadCheckpointError: torch has no such dtype.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise BadCheckpointError(f"it has a tensor of {name!r}, which torch does not know")
    return dtype


@contextmanager
def _in_words(kind: type[Exception]) -> Iterator[None]:
    """What went wrong on which rank, in one line, for torch's report with all their tracebacks."""
    try:
        yield
    except CheckpointException as error:
        rank, (first, _) = min(error.failures.items())
        what = getattr(first, "strerror", None) or f"{type(first).__name__}: {first}"
        raise kind(f"rank {rank}: {' '.join(what.split())[:300]}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """One process without a group is what is meant, and no reason to warn."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    yield
