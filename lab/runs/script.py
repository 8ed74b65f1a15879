"""What can be known to be wrong with a script before anything is started."""

import os
import shutil
import warnings
import zipfile
from pathlib import Path

from lab.errors import UsageError


def check_script(name: str, folder: Path, cwd: Path) -> None:
    """Look at a script that Python is to run in `folder`.

    Raises:
        UsageError: it is not there, is no file, is no Python, or Python cannot compile it.
    """
    path = folder / name
    if path.is_dir():
        if not (path / "__main__.py").is_file():
            raise UsageError(f"{name} is a folder without a __main__.py; name the script in it")
        return
    if not path.exists():
        elsewhere = folder != cwd and (cwd / name).is_file()
        cure = (
            f"with --cwd name it as seen from there: {os.path.relpath(cwd / name, folder)}"
            if elsewhere
            else "name a file, or -m and a module, or --no-python and an executable"
        )
        raise UsageError(f"there is no script {name} in {folder}; {cure}")
    try:
        source = path.read_bytes() if path.is_file() else b""
    except OSError as error:
        raise UsageError(f"the script {name} cannot be read: {error.strerror}") from error
    if not (path.is_file() and zipfile.is_zipfile(path)):
        _compile(name, source)


def _compile(name: str, source: bytes) -> None:
    first_line = source[:200].split(b"\n", 1)[0]
    foreign = first_line.startswith(b"\x7fELF") or (
        first_line.startswith(b"#!") and b"python" not in first_line
    )
    if foreign:
        raise UsageError(f"{name} is no Python script; to run it as it is: lab run --no-python")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python shows them when the ranks run it
            compile(source, name, "exec", dont_inherit=True)
    except SyntaxError as error:
        where = f"{name}:{error.lineno}" if error.lineno else name
        text = f": {error.text.strip()}" if error.text and error.text.strip() else ""
        raise UsageError(f"{where}: {error.msg}{text}") from error
    except (ValueError, RecursionError, MemoryError) as error:  # NUL bytes; nested too deeply
        raise UsageError(f"{name} cannot be compiled: {error}") from error


def check_executable(name: str, folder: Path, *, local: bool) -> None:
    """Look at an executable that is to start in `folder`.

    What is not below the folder is looked for only on this machine's own nodes.

    Raises:
        UsageError: it is not there, or is not executable.
    """
    if os.sep not in name:
        if local and shutil.which(name) is None:
            raise UsageError(
                f"there is no executable {name} on PATH; one in a folder needs its path: ./{name}"
            )
        return
    path = folder / name
    if not local and not path.is_relative_to(folder):
        return  # a path of the node's own
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UsageError(f"the executable {path} {what}")
    if not os.access(path, os.X_OK):
        raise UsageError(f"{path} is not executable; chmod +x {name}")
