"""What bounds the processes of this node: shared memory, limits, the kernel. Standard library only.

A part of what the doctor looks at; `lab.node.facts` has what `lab hosts` shows as well.
"""

import contextlib
import ctypes
import errno
import gzip
import os
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

from lab.node.memory import memory_limit

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - it is not for a file of ours
CGROUP = Path("/sys/fs/cgroup")
LIMITS = {"open files": "RLIMIT_NOFILE", "processes": "RLIMIT_NPROC", "locked": "RLIMIT_MEMLOCK"}


def bounds() -> dict[str, Any]:
    """Look at the limits.

    Returns:
        `shm` (`total` and `free` bytes; None: there is none), `ulimits` (name -> soft and hard,
        None: no limit), `cpus` of the machine, `cgroup` (`memory` bytes, `pids`; None: no limit),
        `infiniband` (whether there is any), `netem` and `ptrace` (None: it does not show).
    """
    return {
        "shm": _shared_memory(),
        "ulimits": _ulimits(),
        "cpus": os.cpu_count(),
        "cgroup": {"memory": memory_limit(), "pids": _pids_limit()},
        "infiniband": Path("/sys/class/infiniband").is_dir(),
        "netem": _has_netem(),
        "ptrace": may_read_others(),
    }


def _shared_memory() -> dict[str, int] | None:
    try:
        usage = shutil.disk_usage(SHARED_MEMORY)
    except OSError:
        return None
    return {"total": usage.total, "free": usage.free}


def _ulimits() -> dict[str, list[int | None]]:
    found = {}
    for name, constant in LIMITS.items():
        number = getattr(resource, constant, None)
        if number is not None:
            pair = resource.getrlimit(number)
            found[name] = [None if one == resource.RLIM_INFINITY else one for one in pair]
    return found


def _pids_limit() -> int | None:
    """How many processes and threads this control group may have (cgroup v2, else v1)."""
    for file in (CGROUP / "pids.max", CGROUP / "pids/pids.max"):
        with contextlib.suppress(OSError, ValueError):  # ValueError: `max`
            return int(file.read_text())
    return None


def _has_netem() -> bool | None:
    """Whether the kernel can emulate delay and loss (sch_netem); None: it does not say here."""
    with contextlib.suppress(OSError):
        if "sch_netem " in Path("/proc/modules").read_text():
            return True
    with contextlib.suppress(OSError, EOFError):
        config = gzip.decompress(Path("/proc/config.gz").read_bytes()).decode()
        return any(f"CONFIG_NET_SCH_NETEM={how}\n" in config for how in "ym")
    folder = Path("/lib/modules") / os.uname().release
    if not folder.is_dir():
        return None
    built_in = folder / "modules.builtin"
    if built_in.is_file() and "sch_netem" in built_in.read_text():
        return True
    return any(folder.glob("kernel/net/sched/sch_netem.ko*"))


def may_read_others() -> bool | None:
    """Whether a process may look into a sibling, as py-spy does (Linux).

    By process_vm_readv(2), or /proc/PID/mem where a container's seccomp denies the call alone.
    Tried on two children: what decides (Yama, capabilities, seccomp) shows nowhere else.
    """
    if sys.platform != "linux":
        return None
    word = ctypes.create_string_buffer(b"word")
    end, keep_open = os.pipe()
    sibling = os.fork()
    if sibling == 0:
        os.close(keep_open)
        os.read(end, 1)  # until the parent has done
        os._exit(0)
    reader = os.fork()
    if reader == 0:
        os._exit(_read_of(sibling, ctypes.addressof(word)))
    code = os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1])
    os.close(keep_open)
    os.close(end)
    os.waitpid(sibling, 0)
    return {0: True, errno.EPERM: False, errno.EACCES: False}.get(code)


def _read_of(pid: int, address: int) -> int:
    """Read four bytes of a process; 0, or the error's number."""
    return 0 if _by_call(pid, address) == 0 else _by_file(pid, address)


def _by_file(pid: int, address: int) -> int:
    try:
        with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
            memory.seek(address)
            return 0 if len(memory.read(4)) == 4 else errno.EIO
    except OSError as error:
        return error.errno or errno.EIO


def _by_call(pid: int, address: int) -> int:

    class Vector(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    libc = ctypes.CDLL(None, use_errno=True)
    own = ctypes.create_string_buffer(4)
    here, there = Vector(ctypes.addressof(own), 4), Vector(address, 4)
    size = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
    return 0 if size == 4 else ctypes.get_errno()
