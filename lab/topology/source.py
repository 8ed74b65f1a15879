"""Which topology is meant: a preset, a file, `lab.yaml` in the current folder, or `quad`."""

import contextlib
import difflib
import os
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from lab.topology.errors import Problem, TopologyError

PRESETS = ("solo", "pair", "quad", "quad2x2")
"""Topologies that come with the lab, by name."""
SSH_LAB = "ssh-lab"
"""The rehearsal that `make ssh-lab` brings up: its topology is written, with its keys, where
`written_folder` says."""
SLURM_LAB = "slurm-lab"
"""The cluster that `make slurm-lab` brings up: its topology is written into the folder that it is
for."""
DEFAULT_FILE = "lab.yaml"
DEFAULT_PRESET = "quad"
MAX_BYTES = 32 * 2**20
"""A file of 100,000 nodes written out takes about 10 MB."""
LOOKED_AT = 1 << 16
"""Bytes of a file in which its nodes are looked for before it is proposed."""


@dataclass(frozen=True)
class Source:
    """The text of a topology, and what to call it in messages."""

    name: str
    """The file as the user named it, or `preset quad`."""
    text: str
    stem: str
    """The file's name without its suffix, which is the topology's name unless it says another."""


def read_source(source: str | None = None) -> Source:
    """Find and read a topology.

    Args:
        source: name of a preset, or path of a file (`./quad` for a file named like a preset);
            `mine` finds `mine.yaml`, too. None means lab.yaml in the current folder where there
            is one, else the preset quad.

    Raises:
        TopologyError: no such preset or file, or a file that cannot be read as text.
    """
    if source is None:
        source = DEFAULT_FILE if Path(DEFAULT_FILE).exists() else DEFAULT_PRESET
    if source in PRESETS:
        file = resources.files("lab.topology").joinpath("presets", f"{source}.yaml")
        return Source(f"preset {source}", file.read_text(encoding="utf-8"), source)
    path = with_ending(Path(source).expanduser())
    if source == SSH_LAB and not path.exists():
        path = written_folder(SSH_LAB) / "topology.yaml"
    return Source(source, _read(path, source), path.stem)


def written_folder(name: str) -> Path:
    """Where a topology is that lab itself has written (XDG base directory specification)."""
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    base = given if given.is_absolute() else Path.home() / ".local" / "state"
    return base / "multinode-lab" / name


def with_ending(path: Path) -> Path:
    """`mine.yaml` for `mine`, where only that is there."""
    with contextlib.suppress(OSError, ValueError):  # no name that a file can have
        if path.name and not path.exists() and path.with_suffix(".yaml").exists():
            return path.with_suffix(".yaml")
    return path


def may_be_topology(file: Path) -> bool:
    """Whether a file looks like one: YAML that names nodes. A compose.yaml, say, does not."""
    if file.suffix not in (".yaml", ".yml") or not file.is_file():
        return False
    with contextlib.suppress(OSError), file.open("rb") as opened:
        return re.search(rb"^nodes\s*:", opened.read(LOOKED_AT), re.MULTILINE) is not None
    return False


def _read(path: Path, source: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise _not_there(path, source) from None
    except IsADirectoryError:
        inside = path / DEFAULT_FILE
        nearest = str(inside) if inside.exists() else None
        raise _unreadable(source, "must be a file, and this is a folder", nearest) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the name
        reason = getattr(error, "strerror", None) or str(error)
        raise _unreadable(source, f"cannot be read: {reason}") from None
    if len(data) > MAX_BYTES:
        raise _unreadable(source, f"must be at most {MAX_BYTES // 2**20} MiB")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = Problem(source, line, "", None, "must be text in UTF-8, and this is not")
        raise TopologyError([problem]) from None


def _not_there(path: Path, source: str) -> TopologyError:
    if source in (SSH_LAB, SLURM_LAB):
        return _unreadable(source, f"not there; `make {source}` brings it up")
    near = difflib.get_close_matches(source, PRESETS, n=1, cutoff=0.5)
    if not near and path.parent.is_dir():
        names = [file.name for file in path.parent.iterdir() if may_be_topology(file)]
        near = difflib.get_close_matches(path.name, names, n=1, cutoff=0.5)
        near = [str(path.parent / name) for name in near]
    allowed = f"no such file; must be a file or a preset: {', '.join(PRESETS)}"
    return _unreadable(source, allowed, near[0] if near else None)


def _unreadable(source: str, allowed: str, nearest: str | None = None) -> TopologyError:
    return TopologyError([Problem(source or "''", None, "", None, allowed, nearest)])
