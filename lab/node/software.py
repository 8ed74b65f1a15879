"""What ranks of this node would run with: variables, and the files of the project."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

VARIABLES = ("CUDA_", "GLOO_", "KMP_", "MKL_", "NCCL_", "OMP_", "PYTORCH_", "TORCH_", "UCX_")
"""How the variables begin that must not differ between nodes by accident."""
CODE = (".py", ".pyx", ".so", ".yaml", ".yml", ".json", ".toml", ".cfg", ".ini", ".sh")
SKIPPED = frozenset(("__pycache__", "node_modules", "outputs", "runs", "site-packages", "venv"))
"""Folders that are not the project's own files; neither are those that begin with a dot."""
MOST_FILES = 2000
MOST_BYTES = 64 << 20
MOST_NAMES = 50_000
"""Where to stop: a folder of data is not to be read. The order is the same on all nodes."""
LARGEST = 1 << 20
"""Bytes of a file that counts as code."""


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Those of an environment that torch and the libraries below it obey."""
    return {name: env[name] for name in sorted(env) if name.startswith(VARIABLES)}


def code_of(folder: str) -> dict[str, Any] | None:
    """The project's files; None: there is no such folder. `~` is the home.

    Returns:
        `files` (path -> the beginning of its SHA-256; the first ones, where there are very many)
        and `hash`, equal where all of them are.
    """
    root = Path(folder).expanduser()
    if not root.is_dir():
        return None
    files: dict[str, str] = {}
    size = 0
    for path in _files(root):
        name = str(path.relative_to(root)).encode("utf-8", "replace").decode()
        try:
            data = path.read_bytes()
            size += len(data)
            files[name] = hashlib.sha256(data).hexdigest()[:12]
        except OSError as error:
            files[name] = f"cannot be read: {error.strerror}"
        if len(files) == MOST_FILES or size > MOST_BYTES:
            break
    return {"files": files, "hash": hashlib.sha256(repr(files).encode()).hexdigest()[:12]}


def _files(root: Path) -> Iterator[Path]:
    seen = 0
    for folder, below, names in os.walk(root):
        seen += len(names)
        if seen > MOST_NAMES:
            return
        below[:] = sorted(n for n in below if n not in SKIPPED and not n.startswith("."))
        for name in sorted(names):
            path = Path(folder, name)
            if name.endswith(CODE) and path.is_file() and path.stat().st_size <= LARGEST:
                yield path
