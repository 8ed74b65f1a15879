"""What there is to know of a node before anything is run on it. Standard library only.

The one collector: `lab hosts` shows what it finds. It is carried to the node over stdin
(`lab.deploy.program`), also to one whose Python is too old for the rest of lab.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lab.node.memory import memory_limit

CLOCK = b"clock\n"
"""Asks for the time; the answer comes at once, so that half the way there is all that is unsure."""
_GPU_FIELDS = ("name", "memory.total", "memory.used", "driver_version")


def collect(folder: str) -> dict[str, Any]:
    """Look at this node.

    Args:
        folder: whose disk to look at; `~` is the home. The nearest folder above counts that exists.

    Returns:
        `hostname`, `os`, `kernel`, `machine`, `python`, `executable`, `cores` (that may be used),
        `memory` and `memory_free` (bytes), `load` (of a minute; None: not known), `gpus` (a list
        of `name`, `memory` and `memory_used` in bytes, `driver`), `torch` (its version, or None),
        `disk_free` (bytes) and `writable` (whether one may write there).
    """
    total, free = _memory()
    place = _nearest(Path(folder).expanduser())
    return {
        "hostname": socket.gethostname(),
        "os": _system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "cores": _cores(),
        "memory": total,
        "memory_free": free,
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "gpus": _gpus(),
        "torch": _torch(),
        "disk_free": shutil.disk_usage(place).free,
        "writable": _may_write(place),
    }


def _system() -> str:
    """The distribution (os-release(5)), else the kind of system and its version."""
    try:
        for line in Path("/etc/os-release").read_text(encoding="utf-8").splitlines():
            name, _, value = line.partition("=")
            if name == "PRETTY_NAME":
                return value.strip("\"'")
    except OSError:
        pass
    return f"{platform.system()} {platform.release()}"


def _cores() -> float:
    """Cores that this process may use: its affinity, and what its control group allows."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = _cpu_quota()
    return cores if quota is None else min(float(cores), quota)


def _cpu_quota() -> float | None:
    """Cores' worth of time of this control group; None: no limit (cgroup v2 cpu.max, v1 cpu.*)."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return int(quota) / int(period)
    except (OSError, ValueError):
        pass
    try:
        cpu = Path("/sys/fs/cgroup/cpu")
        quota_us = int((cpu / "cpu.cfs_quota_us").read_text())
        return quota_us / int((cpu / "cpu.cfs_period_us").read_text()) if quota_us > 0 else None
    except (OSError, ValueError):
        return None


def _memory() -> tuple[int | None, int | None]:
    """Bytes in all and available, within the control group's limit; None: not known."""
    found: dict[str, int] = {}
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, value = line.split(":")
            found[name] = int(value.split()[0]) * 1024
    except (OSError, ValueError):
        try:
            return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), None
        except (OSError, ValueError):
            return None, None
    total, free = found.get("MemTotal"), found.get("MemAvailable")
    limit = memory_limit()
    if limit is not None and total is not None and limit < total:
        return limit, None if free is None else min(free, limit)
    return total, free


def _gpus() -> list[dict[str, Any]]:
    """What nvidia-smi(1) tells; nothing where there is none, or where it does not work."""
    query = f"--query-gpu={','.join(_GPU_FIELDS)}"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=20,
            check=True,
        )
        rows = [line.split(", ") for line in done.stdout.decode().splitlines() if line.strip()]
        return [
            {
                "name": name,
                "memory": int(memory) << 20,
                "memory_used": int(used) << 20,
                "driver": driver,
            }
            for name, memory, used, driver in rows
        ]
    except (OSError, ValueError, subprocess.SubprocessError):
        return []


def _torch() -> str | None:
    """The version that this Python would import; it is not imported."""
    try:
        from importlib import metadata
    except ImportError:  # before Python 3.8
        return None
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        return None


def _nearest(folder: Path) -> Path:
    """The folder, or the nearest above it that exists and may be looked at."""
    for place in (folder, *folder.parents):
        try:
            shutil.disk_usage(place)
        except OSError:
            continue
        return place
    return Path("/")


def _may_write(folder: Path) -> bool:
    """Tried: access(2) does not count the capability by which ranks write into root's folders."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError as error:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)


def main() -> None:
    """Read the folder from stdin, tell the facts in a line of JSON, then the time when asked."""
    folder = json.loads(sys.stdin.buffer.readline().decode())
    out = sys.stdout
    out.write(json.dumps({"type": "facts", **collect(folder)}) + "\n")
    out.flush()
    while sys.stdin.buffer.readline() == CLOCK:
        out.write(json.dumps({"type": "clock", "time": time.time()}) + "\n")
        out.flush()
