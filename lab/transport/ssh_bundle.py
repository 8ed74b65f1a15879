"""Lab's own code as it travels to hosts that have no lab: one archive, known by its content.

The agent and the bootstrap of the ranks need the standard library alone. The rest goes along so
that `lab.parallel` and `lab.training` are there for a script, as in the containers; it needs torch.
"""

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import lab

LEFT_OUT = frozenset(["assets", "cli", "transport", "__pycache__"])
"""Parts of the package that only a controller needs."""


@dataclass(frozen=True)
class Bundle:
    """The archive, and the name that it is found again by."""

    name: str
    """A hash of what is in it."""
    content: bytes
    """A tar file with `lab/` in it; equal code gives equal bytes."""

    @cached_property
    def data(self) -> bytes:
        """The same, gzipped: for who has it already it is not needed, and takes its time."""
        return gzip.compress(self.content, mtime=0)


@cache
def bundle() -> Bundle:
    """The present code of lab."""
    package = Path(lab.__file__).parent
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for path in sorted(package.rglob("*.py")):
            inside = path.relative_to(package)
            if not LEFT_OUT.isdisjoint(inside.parts):
                continue
            data = path.read_bytes()
            member = tarfile.TarInfo(f"lab/{inside.as_posix()}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    content = raw.getvalue()
    return Bundle(hashlib.sha256(content).hexdigest()[:16], content)


KEEP = """\
import os, shutil, sys, tarfile, tempfile, time
target = sys.argv[1]
parent = os.path.dirname(target)
os.makedirs(parent, mode=0o700, exist_ok=True)
around = b""
for process in os.listdir("/proc") if os.path.isdir("/proc") else ():
    try:
        with open("/proc/%s/environ" % process, "rb") as file:
            around += file.read()
    except OSError:
        pass
for name in os.listdir(parent):
    path = os.path.join(parent, name)
    used = os.path.join(path, "used")
    age = time.time() - os.path.getmtime(used if os.path.exists(used) else path)
    if age > 7 * 86400 and os.fsencode(path) not in around:
        shutil.rmtree(path, ignore_errors=True)
temporary = tempfile.mkdtemp(dir=parent)
try:
    open(os.path.join(temporary, "used"), "x").close()
    with tarfile.open(fileobj=sys.stdin.buffer, mode="r|gz") as archive:
        archive.extractall(temporary)
    try:
        os.rename(temporary, target)
    except OSError:
        if not os.path.isdir(os.path.join(target, "lab")):
            raise
finally:
    shutil.rmtree(temporary, ignore_errors=True)
"""
"""Python for a host: keep the archive on stdin as the folder that is named, whole or not at all.

Folders that no run has begun with for a week go, unless a process has one in its environment
(PYTHONPATH; Linux, elsewhere not known)."""
