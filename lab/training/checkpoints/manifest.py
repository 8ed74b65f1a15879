"""`checkpoint.json`: what a checkpoint is of and what its files must be. No torch is needed here.

Beside it lie the files of torch.distributed.checkpoint. Its own index, `.metadata`, is a pickle: it
is written for other tools, and never read here, because a pickle may run code.
"""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lab.errors import LabError

NAME = "checkpoint.json"
FORMAT = "lab.checkpoint"
VERSION = 1
DATA_FILE = re.compile(r"[.\w]+")
"""Names of the other files: nothing that leads out of the folder."""
DEEPEST = 50
"""How many containers may lie in each other: `json` follows them by recursion."""
SHOWN = 20
"""How many of a progress are shown."""


class BadCheckpointError(LabError):
    """This is no checkpoint that can be used. The message says what is wrong with it."""


def printable(text: str) -> str:
    """A text from a file, with all that a terminal would obey written as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@dataclass(frozen=True)
class Extent:
    """Where something lies within the checkpoint's files."""

    file: str
    start: int
    bytes: int


@dataclass(frozen=True)
class Chunk:
    """A box of a tensor, saved by itself."""

    offsets: list[int]
    sizes: list[int]
    extent: Extent


@dataclass(frozen=True)
class TensorEntry:
    """A tensor of the model's or the optimiser's."""

    shape: list[int]
    dtype: str
    """`float32` and so on."""
    chunks: list[Chunk]


@dataclass(frozen=True)
class FileEntry:
    """What a file must be."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """All about a checkpoint but the numbers in it."""

    step: int
    world_size: int
    """How many ranks saved it."""
    saved: str
    """When: ISO 8601, UTC."""
    torch: str
    """Its version."""
    optimizer: str
    """The class's name."""
    progress: dict[str, Any]
    """To look at. What is loaded is saved with every bit."""
    tensors: dict[str, TensorEntry]
    """`model.NAME` and `optimizer.NAME.KEY`."""
    objects: dict[str, Extent]
    """What is no tensor."""
    files: dict[str, FileEntry]

    @property
    def total_bytes(self) -> int:
        """Of all files it names."""
        return sum(file.bytes for file in self.files.values())

    def text(self) -> str:
        """What is written: JSON, with a checksum of itself."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps({**content, "sha256": _checksum(content)}) + "\n"

    @classmethod
    def parse(cls, text: bytes) -> "Manifest":
        """Read what `text` gave.

        Raises:
            BadCheckpointError: it is another's, of a newer format, cut off or changed.
        """
        try:
            content = json.loads(text)
        except (ValueError, RecursionError):
            raise BadCheckpointError(f"its {NAME} is cut off or damaged") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise BadCheckpointError(f"its {NAME} is not of a checkpoint that lab wrote")
        version = content.get("version")
        if type(version) is int and version > VERSION:
            raise BadCheckpointError(
                f"it is of format {version}, and this lab reads format {VERSION}: "
                "use the newer lab that wrote it"
            )
        if _is_deeper(content, DEEPEST):
            raise BadCheckpointError(f"its {NAME} is damaged: it is nested too deeply")
        if content.pop("sha256", None) != _checksum(content):
            raise BadCheckpointError(f"its {NAME} was changed: the checksum is another")
        del content["format"], content["version"]
        try:
            return cls._of(content)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise BadCheckpointError(
                f"its {NAME} is damaged: {printable(str(error)[:200])}"
            ) from None

    @classmethod
    def _of(cls, content: dict[str, Any]) -> "Manifest":
        files = {name: FileEntry(**entry) for name, entry in content["files"].items()}
        for name, file in files.items():
            if not DATA_FILE.fullmatch(name) or name in (".", ".."):
                raise ValueError(f"{name!r} cannot be the name of one of its files")
            _must_count(file.bytes)
            _must_be(str, file.sha256)
        tensors = {name: _tensor_entry(entry, files) for name, entry in content["tensors"].items()}
        objects = {name: _extent(entry, files) for name, entry in content["objects"].items()}
        manifest = cls(**{**content, "tensors": tensors, "objects": objects, "files": files})
        _must_count(manifest.step, manifest.world_size)
        _must_be(str, manifest.saved, manifest.torch, manifest.optimizer)
        _must_be(dict, manifest.progress)
        if datetime.fromisoformat(manifest.saved).tzinfo is None:
            raise ValueError("its time has no time zone")
        return manifest


def _tensor_entry(entry: dict[str, Any], files: Mapping[str, FileEntry]) -> TensorEntry:
    shape, dtype, chunks = entry["shape"], entry["dtype"], entry["chunks"]
    _must_be(list, shape, chunks)
    _must_count(*shape)
    _must_be(str, dtype)
    read = []
    for chunk in chunks:
        offsets, sizes = chunk["offsets"], chunk["sizes"]
        _must_be(list, offsets, sizes)
        _must_count(*offsets, *sizes)
        extent = _extent(chunk["extent"], files)
        ends = [offset + size for offset, size in zip(offsets, sizes, strict=True)]
        if any(end > size for end, size in zip(ends, shape, strict=True)):
            raise ValueError(f"a part of a tensor of {shape} ends at {ends}")
        if math.prod(sizes) > extent.bytes:  # no dtype has less than a byte
            raise ValueError(f"{extent.bytes} bytes cannot be {sizes} numbers")
        read.append(Chunk(offsets, sizes, extent))
    # Memory is taken for as much as a shape says: it must be what is in the files.
    if sum(math.prod(chunk.sizes) for chunk in read) != math.prod(shape):
        raise ValueError(f"the parts of a tensor of {shape} are not all of it")
    return TensorEntry(shape, dtype, read)


def _extent(entry: dict[str, Any], files: Mapping[str, FileEntry]) -> Extent:
    extent = Extent(**entry)
    _must_be(str, extent.file)
    _must_count(extent.start, extent.bytes)
    if extent.file not in files:
        raise ValueError(f"it names no file {extent.file}")
    if extent.start + extent.bytes > files[extent.file].bytes:
        raise ValueError(f"{extent.file} has no bytes {extent.start} + {extent.bytes}")
    return extent


def _must_be(kind: type, *values: Any) -> None:
    for value in values:
        if type(value) is not kind:
            raise TypeError(f"{value!r:.50} is no {kind.__name__}")


def _must_count(*values: Any) -> None:
    _must_be(int, *values)
    for value in values:
        if not 0 <= value < 2**63:
            raise ValueError(f"{value} counts nothing")


def _is_deeper(value: Any, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    return bool(level)


def read_manifest(folder: Path) -> Manifest:
    """Of the checkpoint in a folder.

    Raises:
        BadCheckpointError: there is none that can be used.
    """
    try:
        text = (folder / NAME).read_bytes()
    except FileNotFoundError:
        raise BadCheckpointError(
            f"it has no {NAME}: lab did not write it, or not to its end"
        ) from None
    except NotADirectoryError:
        raise BadCheckpointError("it is a file, and no folder") from None
    except OSError as error:
        raise BadCheckpointError(f"its {NAME} cannot be read: {error.strerror}") from None
    return Manifest.parse(text)


def check_file(folder: Path, name: str, expected: FileEntry, *, read: bool = True) -> None:
    """Make sure that a file is what it was when it was saved.

    Args:
        folder: the checkpoint's.
        name: the file's.
        expected: as the manifest has it.
        read: False: look at its size only.

    Raises:
        BadCheckpointError: it is not.
    """
    try:
        found = (folder / name).stat().st_size
        if found != expected.bytes:
            how = "is cut off" if found < expected.bytes else "has become longer"
            raise BadCheckpointError(f"its {name} {how}: {found} of {expected.bytes} bytes")
        if read:
            with (folder / name).open("rb") as file:
                checksum = hashlib.file_digest(file, "sha256").hexdigest()
            if checksum != expected.sha256:
                raise BadCheckpointError(f"its {name} was changed: the checksum is another")
    except FileNotFoundError:
        raise BadCheckpointError(f"its {name} is missing") from None
    except OSError as error:
        raise BadCheckpointError(f"its {name} cannot be read: {error.strerror}") from None


def described(value: Any, depth: int = SHOWN) -> Any:
    """A value as JSON can show it: numbers, texts and containers as they are, the rest in words.

    Args:
        value: plain data.
        depth: of containers; what lies deeper is in words. One may hold itself.
    """
    if isinstance(value, dict) and depth:
        return {str(key): described(inner, depth - 1) for key, inner in value.items()}
    if isinstance(value, list | tuple) and depth:
        return [described(inner, depth - 1) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__}" if shape is None else f"{type(value).__name__} {list(shape)}"


def _checksum(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
