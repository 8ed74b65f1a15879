"""What a host tells a controller that has just reached it over SSH. Standard library only.

It is carried there over stdin (`lab.deploy.program`), before anything else of lab is there; so it
imports nothing of lab. The question is a line of JSON, and so is the answer; `error` in it says why
nothing can run here.
"""

import contextlib
import json
import os
import platform
import secrets
import socket
import struct
import sys
from pathlib import Path
from typing import Any

IDENTITY = ".host"
"""File in the working directory by which the same directory under two names is told."""
USED = "used"
"""File beside lab's code whose time says when a run last began with it."""
_SIOCGIFADDR = 0x8915


def tell(workdir: str, project: str, code: str, towards: str | None, make: bool) -> dict[str, Any]:
    """What there is to know.

    Args:
        workdir: the folder that runs live in; `~` is the home.
        project: name of the folder in it that is this controller's.
        code: folder in it that may have lab's code already.
        towards: name or address of the node to talk to.
        make: make what is missing of it.
    """
    folder = Path.home() / Path(workdir).expanduser()
    current = folder / project / "current"
    told: dict[str, Any] = {
        "executable": sys.executable,
        "home": str(Path.home()),
        "workdir": str(folder),
        "release": str(current.resolve()) if current.is_dir() else None,
    }
    try:
        if make:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            told["identity"] = f"{_identity(folder)} {_boot()} {socket.gethostname()}"
        told["has_code"] = (folder / code / "lab").is_dir()
        if make and told["has_code"]:
            # So that it is not taken for old; a warm process goes by the folder's own time.
            os.utime(folder / code / USED)
    except OSError as error:
        told["error"] = f"{error.filename or folder} cannot be written: {error.strerror}"
    if towards is not None:
        try:
            told["interface"] = interface_towards(towards)
        except OSError as error:
            told["error"] = f"it cannot reach {towards}: {error.strerror or error}"
    return told


def _identity(folder: Path) -> str:
    """A random word that is this folder's for good."""
    with contextlib.suppress(FileExistsError):
        descriptor = os.open(folder / IDENTITY, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(16))
    return (folder / IDENTITY).read_text()


def _boot() -> str:
    """What tells machines apart that share a folder (Linux)."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return platform.node()


def interface_towards(name: str) -> str | None:
    """The interface by which packets leave for a host; None: the system does not say.

    Raises:
        OSError: the name cannot be resolved, or there is no way there.
    """
    family, kind, _, _, address = socket.getaddrinfo(name, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing
        own = probe.getsockname()[0].partition("%")[0]
    found = ipv6_interfaces() if family == socket.AF_INET6 else ipv4_interfaces()
    return found.get(socket.inet_pton(family, own))


def ipv4_interfaces() -> dict[bytes, str]:
    """Packed address -> interface (netdevice(7), SIOCGIFADDR; Linux)."""
    if sys.platform != "linux":
        return {}
    import fcntl

    found = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has none
                request = struct.pack("256s", name.encode()[:15])
                reply = fcntl.ioctl(any_socket.fileno(), _SIOCGIFADDR, request)
                found[reply[20:24]] = name
    return found


def ipv6_interfaces() -> dict[bytes, str]:
    """Packed address -> interface (Linux)."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
        return {bytes.fromhex(line.split()[0]): line.split()[-1] for line in lines}
    return {}


def main() -> None:
    """Answer the question that comes on stdin."""
    question = json.loads(sys.stdin.buffer.readline())
    print(json.dumps(tell(**question)))
