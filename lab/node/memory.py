"""What the kernel says of this node's memory: its limit, and whom it killed for it."""

from __future__ import annotations  # facts are also collected by old Pythons

import contextlib
from pathlib import Path

V2 = Path("/sys/fs/cgroup")
V1 = Path("/sys/fs/cgroup/memory")
OWN = Path("/proc/self/cgroup")
NO_LIMIT = 1 << 60
"""cgroup v1 says `no limit` as a number near 2^63."""


def _folders() -> list[Path]:
    """Of this control group and those around it, the innermost first.

    In a container it is what is mounted; under a batch system, which makes one for each job, step
    and task, it is below that.
    """
    found = []
    with contextlib.suppress(OSError, ValueError):
        for line in OWN.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "memory" in controllers.split(","):
                own = (V1 if controllers else V2) / path.lstrip("/")
                found += [own, *own.parents]
    return [folder for folder in (*found, V2, V1) if V2 in (folder, *folder.parents)]


def oom_kills() -> int:
    """How many processes of this control group were killed for want of memory; 0: not known.

    Source: memory.events of cgroup v2, memory.oom_control of v1
    (https://docs.kernel.org/admin-guide/cgroup-v2.html).
    """
    for folder in _folders():
        for file in ("memory.events", "memory.oom_control"):
            with contextlib.suppress(OSError, ValueError):
                for line in (folder / file).read_text().splitlines():
                    name, _, value = line.partition(" ")
                    if name == "oom_kill":
                        return int(value)
    return 0


def memory_limit() -> int | None:
    """Bytes that this control group may use; None: as many as there are."""
    limits = []
    for folder in _folders():
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):  # ValueError: `max`
                limits.append(int((folder / name).read_text()))
    return min((limit for limit in limits if limit < NO_LIMIT), default=None)
