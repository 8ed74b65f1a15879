"""`checkpoint.json`: what a checkpoint is of and what its files must be. No torch is needed here.

Beside it lie the files of torch.distributed.checkpoint. Its own index, `.metadata`, is a pickle: it
is written for other tools, and never read here, because a pickle may run code.
"""

import hashlib
import json
import math
import re
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


class BadCheckpointError(LabError):
    """This is no checkpoint that can be used. The message says what is wrong with it."""


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
        except ValueError:
            raise BadCheckpointError(f"its {NAME} is cut off or damaged") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise BadCheckpointError(f"its {NAME} is not of a checkpoint that lab wrote")
        version = content.get("version")
        if not isinstance(version, int) or version > VERSION:
            raise BadCheckpointError(
                f"it is of format {version}, and this lab reads format {VERSION}: "
                "use the newer lab that wrote it"
            )
        if content.pop("sha256", None) != _checksum(content):
            raise BadCheckpointError(f"its {NAME} was changed: the checksum is another")
        del content["format"], content["version"]
        try:
            return cls._of(content)
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise BadCheckpointError(f"its {NAME} is damaged: {error}") from None

    @classmethod
    def _of(cls, content: dict[str, Any]) -> "Manifest":
        tensors = {
            str(name): TensorEntry(
                [*map(int, entry["shape"])],
                str(entry["dtype"]),
                [
                    Chunk(
                        [*map(int, chunk["offsets"])],
                        [*map(int, chunk["sizes"])],
                        Extent(**chunk["extent"]),
                    )
                    for chunk in entry["chunks"]
                ],
            )
            for name, entry in content["tensors"].items()
        }
        objects = {str(name): Extent(**extent) for name, extent in content["objects"].items()}
        files = {str(name): FileEntry(**entry) for name, entry in content["files"].items()}
        manifest = cls(**{**content, "tensors": tensors, "objects": objects, "files": files})
        if datetime.fromisoformat(manifest.saved).tzinfo is None:
            raise ValueError("its time has no time zone")
        extents = [chunk.extent for entry in tensors.values() for chunk in entry.chunks]
        for extent in (*extents, *objects.values()):
            if extent.file not in files:
                raise ValueError(f"it names no file {extent.file}")
        for name in files:
            if not DATA_FILE.fullmatch(name) or name in (".", ".."):
                raise ValueError(f"{name!r} cannot be the name of one of its files")
        return manifest


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


def described(value: Any) -> Any:
    """A value as JSON can show it: numbers, texts and containers as they are, the rest in words."""
    if isinstance(value, dict):
        return {str(key): described(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [described(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    shape = getattr(value, "shape", None)
    return f"{type(value).__name__}" if shape is None else f"{type(value).__name__} {list(shape)}"


def _checksum(content: dict[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
