"""`lab ckpt`: the checkpoints of trainings, from their folders. Without torch."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lab.cli.console import print_table
from lab.cli.options import JsonOption, run_ids
from lab.cli.output import one_line
from lab.errors import EXIT_FAILURE, UsageError

if TYPE_CHECKING:
    from lab.training.checkpoints.folder import Found

app = typer.Typer(help="Look at checkpoints and check them.", no_args_is_help=True)

FOLDER = "checkpoints"

PlaceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[PLACE]",
        help="A checkpoint, a folder of checkpoints, or a run's id. "
        "Default: the folder checkpoints here, else the latest run that has some.",
        show_default=False,
        autocompletion=run_ids,
    ),
]


@app.command("ls")
def list_(place: PlaceArgument = None, as_json: JsonOption = False) -> None:
    """The checkpoints of a folder, the last saved first."""
    rows = [_summary(one) for one in _checkpoints(place)]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    _print_table(
        ("STEP", "SAVED", "RANKS", "SIZE", "STATE", "CHECKPOINT"),
        [
            (
                str(row["step"]),
                row["saved"][:19].replace("T", " "),
                str(row["world_size"] or "?"),
                "?" if row["bytes"] is None else _size(row["bytes"]),
                row["problem"] or "whole",
                row["path"],
            )
            for row in rows
        ],
    )


@app.command()
def show(place: PlaceArgument = None, as_json: JsonOption = False) -> None:
    """One checkpoint, the last saved of a folder: what it is of, and what it holds.

    Raises:
        UsageError: it cannot be read.
    """
    one = _checkpoints(place)[0]
    if one.manifest is None:
        raise UsageError(one_line(f"{_shown(one.path)}: {one.problem}"))
    manifest = one.manifest
    if as_json:
        print(json.dumps({"path": str(one.path), **json.loads(manifest.text())}, indent=2))
        return
    model = {
        name.removeprefix("model."): entry
        for name, entry in manifest.tensors.items()
        if name.startswith("model.")
    }
    ranks = "1 rank" if manifest.world_size == 1 else f"{manifest.world_size} ranks"
    numbers = sum(math.prod(entry.shape) for entry in model.values())
    for name, value in (
        ("path", _shown(one.path)),
        ("step", str(manifest.step)),
        ("saved", f"{manifest.saved} by {ranks}, torch {manifest.torch}"),
        ("size", f"{_size(manifest.total_bytes)} in {len(manifest.files)} files"),
        ("optimizer", manifest.optimizer),
        ("progress", json.dumps(manifest.progress)),
        ("model", f"{numbers:,} numbers in {len(model)} tensors"),
    ):
        print(f"{name:<9} {one_line(value)}")
    _print_table(
        ("TENSOR", "DTYPE", "SHAPE"),
        [(name, entry.dtype, str(entry.shape)) for name, entry in model.items()],
    )


@app.command()
def verify(place: PlaceArgument = None, as_json: JsonOption = False) -> None:
    """Read checkpoints from end to end and compare their checksums; exit code 1 if one is bad."""
    rows = []
    for one in _checkpoints(place):
        problem = one.problem or _problem(one)
        removed = not one.path.exists()  # by its training, which has later ones
        if not removed:
            rows.append({"path": _shown(one.path), "step": one.step, "problem": problem})
        if not as_json:
            found = "removed while it was read" if removed else problem or "good"
            print(one_line(f"{_shown(one.path)}: {found}"), flush=True)
    if as_json:
        print(json.dumps(rows, indent=2))
    if any(row["problem"] for row in rows):
        raise typer.Exit(EXIT_FAILURE)


def _problem(one: "Found") -> str | None:
    from lab.training.checkpoints.manifest import BadCheckpointError, check_file

    assert one.manifest is not None
    try:
        for name, entry in one.manifest.files.items():
            check_file(one.path, name, entry)
    except BadCheckpointError as error:
        return str(error)
    return None


def _checkpoints(place: str | None) -> list["Found"]:
    """Those of a place, the last saved first: at least one.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    try:
        if found := _found(place):
            return found
    except OSError as error:
        raise UsageError(f"{error.filename} cannot be read: {error.strerror}") from None
    folder = Path(place or FOLDER)
    others = folder.is_dir() and any(folder.iterdir())
    raise UsageError(
        (
            f"there are no checkpoints in {place}"
            if place is not None
            else f"there are no checkpoints in {FOLDER}, nor in a run of this folder: name a place"
        )
        + f" (the files in {folder} are none that lab.training has saved)" * others
    )


def _found(place: str | None) -> list["Found"]:
    from lab.training.checkpoints.folder import CHECKPOINT, find, find_all

    for folder in _folders(place):
        if CHECKPOINT.fullmatch(folder.name) and folder.is_dir():
            return [find(folder)]
        # A training has a folder of its own in the folder of a run's checkpoints.
        inner = [folder, *sorted(path for path in folder.glob("*") if path.is_dir())]
        if found := [one for path in inner for one in find_all(path)]:
            return sorted(found, key=lambda one: (one.saved, one.step), reverse=True)
    return []


def _folders(place: str | None) -> Iterator[Path]:
    from lab.runs.directory import RunDirectory

    if place is None:
        yield Path(FOLDER)
        for run in reversed(RunDirectory.all(Path.cwd())):
            yield run.path / FOLDER
    elif Path(place).is_dir():
        yield Path(place).resolve()
        yield Path(place).resolve() / FOLDER
    elif any(place in run.id for run in RunDirectory.all(Path.cwd())):
        yield RunDirectory.find(Path.cwd(), place).path / FOLDER
    else:
        raise UsageError(f"{place} is no folder here, and in no run's id; lab ps shows the runs")


def _summary(one: "Found") -> dict[str, Any]:
    manifest = one.manifest
    return {
        "path": _shown(one.path),
        "step": one.step,
        "saved": one.saved.isoformat(),
        "world_size": manifest and manifest.world_size,
        "bytes": manifest and manifest.total_bytes,
        "optimizer": manifest and manifest.optimizer,
        "progress": manifest and manifest.progress,
        "problem": one.problem,
    }


def _shown(path: Path) -> str:
    """As seen from here."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_absolute() and path.is_relative_to(here) else path)


def _size(count: float) -> str:
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} GB"


def _print_table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column)
    for row in rows:
        table.add_row(*(Text(one_line(cell)) for cell in row))
    print_table(table)
