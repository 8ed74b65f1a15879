"""Virtual environments for local nodes: one for each content of a requirements file.

They live in the user's cache folder and share the packages of lab's own Python, torch among them:
only what is missing there is installed. One folder for each:

    ~/.cache/multinode-lab/venvs/<digest>/venv     the virtual environment
    ~/.cache/multinode-lab/venvs/<digest>/ready    written last: without it the rest is rubbish

The folder itself is locked: exclusively while it is filled or removed, shared while a run uses it.
Locks go with the process that has them, so nothing needs to be cleaned up after a crash.
"""

import contextlib
import fcntl
import hashlib
import os
import platform
import shutil
import signal
import site
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from lab.cache import cache_folder
from lab.channel import Progress
from lab.deploy.requirements import Requirements
from lab.errors import LabError
from lab.node import processes

_READY = "ready"
_STEPS = ("Downloading ", "Building wheel", "Installing collected packages")
"""How the lines of pip begin that are worth showing."""
_STEP_WIDTH = 90


@dataclass(frozen=True)
class Venv:
    """A virtual environment that is complete, and stays while this process lives."""

    folder: Path
    lock: int = field(repr=False)
    """A descriptor that holds the shared lock."""

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin/python"

    def environment(self, inherited: Mapping[str, str]) -> dict[str, str]:
        """The variables that make its commands the first ones found."""
        path = f"{self.folder / 'bin'}{os.pathsep}{inherited.get('PATH', os.defpath)}"
        return {"PATH": path, "VIRTUAL_ENV": str(self.folder)}


def ensure_venv(requirements: Requirements, progress: Progress) -> Venv:
    """The virtual environment for these requirements; made where it is missing.

    Where another run makes it just now, waits for that one.

    Raises:
        LabError: it cannot be made; nothing of it is left.
    """
    folder = _venvs() / _digest(requirements)
    while True:
        try:
            # Nobody else's business: the address of an index may have a password in it.
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise LabError(
                f"{folder} cannot be made: {error.strerror}; set XDG_CACHE_HOME to a folder of "
                "your own"
            ) from error
        try:
            if _found(folder, lock) or _made(folder, lock, requirements, progress):
                return Venv(folder / "venv", lock)
        except BaseException:
            os.close(lock)
            raise
        os.close(lock)  # somebody has removed it meanwhile


def remove_venvs(dry_run: bool = False) -> list[str]:
    """Remove all virtual environments that no run uses; returns one line for each."""
    removed = []
    for folder in sorted(_venvs().glob("*/")):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        else:
            ready = folder / _READY
            of = ready.read_text().strip() if ready.exists() else "an install that did not end"
            removed.append(f"virtual environment {folder}: {of}")
            if not dry_run:
                shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
    return removed


def _venvs() -> Path:
    return cache_folder() / "venvs"


def _digest(requirements: Requirements) -> str:
    """Stands for all that decides what is in the virtual environment."""
    parts = (requirements.text, sys.version, platform.machine(), str(torch_version()), *_shared())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def torch_version() -> str | None:
    """The version of lab's own torch, found without importing it."""
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _shared() -> list[str]:
    """The folders with the packages of lab's own Python."""
    user = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
    return [*site.getsitepackages(), *user]


def _found(folder: Path, lock: int) -> bool:
    """Whether it is complete; locked so that it stays, then."""
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return _is_there(folder, lock) and (folder / _READY).exists()


def _made(folder: Path, lock: int, requirements: Requirements, progress: Progress) -> bool:
    """Whether it is complete now; False where the folder has been removed meanwhile."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        progress(f"another run installs the packages of {requirements.path}: waiting for it")
        fcntl.flock(lock, fcntl.LOCK_EX)
    if not _is_there(folder, lock):
        return False
    if not (folder / _READY).exists():
        try:
            _make(folder, requirements, progress)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    fcntl.flock(lock, fcntl.LOCK_SH)
    return _is_there(folder, lock)


def _is_there(folder: Path, lock: int) -> bool:
    """Whether the locked folder is the one that has the name now."""
    try:
        return os.path.samestat(folder.stat(), os.fstat(lock))
    except FileNotFoundError:
        return False


def _make(folder: Path, requirements: Requirements, progress: Progress) -> None:
    progress(f"installing the packages of {requirements.path} (once: they are kept)")
    shutil.rmtree(folder / "venv", ignore_errors=True)  # of an install that was killed
    text = folder / "requirements.txt"
    text.write_text(requirements.text)
    constraints = folder / "constraints.txt"
    torch = torch_version()
    constraints.write_text(f"torch=={torch}\n" if torch else "")
    python = folder / "venv/bin/python"
    create = [sys.executable, "-P", "-m", "venv", "--without-pip", str(folder / "venv")]
    _must(create, "no virtual environment can be made")
    _share(python)
    if _run([str(python), "-P", "-m", "pip", "--version"]) is not None:
        ensurepip = [str(python), "-P", "-m", "ensurepip"]
        _must(ensurepip, "pip is missing, and Python's own copy cannot be installed")
    install = [str(python), "-P", "-m", "pip", "install", "--no-input"]

    def show(line: str) -> None:
        if line.lstrip().startswith(_STEPS):
            progress(f"pip: {line.strip()[:_STEP_WIDTH]}")

    output = _run([*install, "-r", str(text), "-c", str(constraints)], show)
    if output is not None:
        raise LabError(requirements.failure(output, torch))
    partial = folder / f"{_READY}.new"
    partial.write_text(f"{requirements.path.resolve()}\n")
    partial.rename(folder / _READY)


def _share(python: Path) -> None:
    """Have it find the packages of lab's own Python behind its own."""
    (packages,) = (python.parent.parent / "lib").glob("python*/site-packages")
    calls = "; ".join(f"site.addsitedir({folder!r})" for folder in _shared())
    (packages / "multinode-lab.pth").write_text(f"import site; {calls}\n")


def _must(argv: Sequence[str], complaint: str) -> None:
    output = _run(argv)
    if output is not None:
        raise LabError(f"{complaint}: {' '.join(' '.join(output).split())}")


def _run(argv: Sequence[str], show: Callable[[str], None] = lambda _line: None) -> list[str] | None:
    """Run a command to its end; what it wrote if it failed, None if it did not."""
    output: list[str] = []
    with subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
        preexec_fn=processes.die_with(os.getpid()),  # a kill -9 of lab must not leave it running
    ) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                output.append(line.rstrip("\n"))
                show(line)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and the builds that it started
            raise
    return output if process.returncode else None
