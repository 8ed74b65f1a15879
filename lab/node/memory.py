"""What the kernel says of this node's memory: its limit, and whom it killed for it."""

from __future__ import annotations  # facts are also collected by old Pythons

import contextlib
from pathlib import Path

V2 = Path("/sys/fs/cgroup")
V1 = Path("/sys/fs/cgroup/memory")
NO_LIMIT = 1 << 60
"""cgroup v1 says `no limit` as a number near 2^63."""


def oom_kills() -> int:
    """How many processes of this control group were killed for want of memory; 0: not known.

    Source: memory.events of cgroup v2, memory.oom_control of v1
    (https://docs.kernel.org/admin-guide/cgroup-v2.html).
    """
    for file in (V2 / "memory.events", V1 / "memory.oom_control"):
        with contextlib.suppress(OSError, ValueError):
            for line in file.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return 0


def memory_limit() -> int | None:
    """Bytes that this control group may use; None: as many as there are."""
    for file in (V2 / "memory.max", V1 / "memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):  # ValueError: `max`
            limit = int(file.read_text())
            if limit < NO_LIMIT:
                return limit
    return None
