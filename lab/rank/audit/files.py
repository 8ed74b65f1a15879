"""Which files a rank writes anew, in such a way that another rank's are known to be the same."""

import inspect
import os
import socket
import sys
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ..frames import RANK, STANDARD_LIBRARY, is_installed, is_users
from .hooks import Hooks

TORCH = str(Path(torch.__file__).parent)
MOST = 1000
"""Files that are noted."""
Key = tuple[str, int, str]
"""A file: its disk, its folder there, its name."""
NETWORK = ("nfs", "cifs", "smb", "ceph", "lustre", "gpfs", "beegfs", "fuse.", "9p", "virtiofs")
"""Beginnings of the names of file systems that several machines share."""


def install(hooks: Hooks) -> None:
    """Listen to what is opened, and to `torch.save`, which opens in C++."""
    watch = Files(hooks)
    hooks.wrap(torch.serialization, "save", before=watch.on_save)
    torch.save = torch.serialization.save
    sys.addaudithook(watch.on_event)


class Files:
    """Notes each file that the script empties and writes something into, once."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks, self._recorder = hooks, hooks.recorder
        self._known: set[Key] = set()
        self._open: dict[str, dict[str, Any]] = {}
        """By path: records of what was opened; locks, for one, stay empty."""
        hooks.after_step.append(lambda *_: self._look())
        hooks.recorder.before_close.append(self._close)

    def on_event(self, event: str, arguments: tuple[Any, ...]) -> None:
        """See `sys.addaudithook`: called for whatever Python does, and so in haste."""
        if event == "open":
            path, _, flags = arguments
            # To append, to change in place or to make what must not be there can be right.
            if flags & os.O_TRUNC and not flags & os.O_EXCL and isinstance(path, str | bytes):
                self._hooks.safely(self._note, path)
        elif event == "os.rename" and self._open:
            self._hooks.safely(self._look)

    def on_save(self, _: object, file: Any, *__: Any, **___: Any) -> None:
        """`torch.save` begins."""
        if isinstance(file, str | os.PathLike):
            self._hooks.safely(self._note, file)

    def _note(self, path: str | bytes | os.PathLike[str]) -> None:
        whole = os.path.realpath(os.fsdecode(path))
        folder, name = os.path.split(whole)
        special = folder.startswith(("/dev", "/proc", "/sys")) or os.path.isdir(whole)  # noqa: PTH112 - in haste
        if special or len(self._known) >= MOST or not _is_scripts(sys._getframe(1), whole):
            return
        status = os.stat(folder)  # noqa: PTH116 - in haste
        key = _disk(status.st_dev), status.st_ino, name
        if key not in self._known:
            self._known.add(key)
            about = {"key": key, "path": os.fsdecode(path), "step": self._recorder.step}
            self._open[whole] = {**about, **self._recorder.site()}

    def _look(self) -> None:
        """Record those into which something has been written."""
        for path, record in list(self._open.items()):
            if os.path.exists(path) and os.path.getsize(path):  # noqa: PTH110, PTH202 - in haste
                del self._open[path]
                self._recorder.record("files", **record, empty=False)

    def _close(self) -> None:
        self._look()
        for record in self._open.values():  # by now another rank may have emptied it again
            self._recorder.record("files", **record, empty=True)


def _is_scripts(frame: FrameType | None, path: str) -> bool:
    """Whether the script itself wrote: not a library of its own accord (caches, downloads).

    A library that the script has given the path does as it was told (`numpy.save`).
    """
    library = None
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return library is None or _was_given(library, path)
        ours = file.startswith((*RANK, TORCH, "<"))
        if not ours and not (file.startswith(STANDARD_LIBRARY) and not is_installed(file)):
            library = frame
        frame = frame.f_back
    return False


def _was_given(call: FrameType, path: str) -> bool:
    """Whether the path was among a call's arguments, perhaps without a suffix."""
    code = call.f_code
    flags = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS
    count = code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & f) for f in flags)
    for value in [call.f_locals.get(name) for name in code.co_varnames[:count]]:
        several = value.values() if isinstance(value, dict) else value
        for one in several if isinstance(several, tuple | type({}.values())) else [value]:
            if isinstance(one, str | os.PathLike):
                given = os.path.realpath(os.fspath(one))
                # Of each argument at each open: a Path takes its time.
                if given in (path, os.path.splitext(path)[0]):  # noqa: PTH122
                    return True
    return False


@cache
def _disk(device: int) -> str:
    """A name of a file system that is the same wherever its files can be seen."""
    number = f"{os.major(device)}:{os.minor(device)}"
    machine = socket.gethostname()
    try:
        machine = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"{machine} {number}"
    for line in mounts.splitlines():
        mount, _, kind = line.partition(" - ")
        if mount.split()[2] == number and kind.startswith(NETWORK):
            return kind.split()[1]
    return f"{machine} {number}"
