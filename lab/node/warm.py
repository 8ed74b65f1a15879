"""A process per node that has torch imported before a run arrives, and forks agents from itself.

Importing torch takes longer than all the rest of a run's start. The agent of a run is a fork of the
warm process, and its ranks are forks of the agent, so a rank begins with torch in its memory (and
shares it with the others until it writes there).

A warm process serves only runs that would have imported the very same torch in the very same way:
`Kind.key` has everything that is read at interpreter start or import, and is part of the name that
it listens on (Linux's abstract sockets: in the node's network namespace, gone with the process).
A run of another kind does not find it, starts from nothing, and leaves a warm process of its own
kind in its place.
"""

import contextlib
import gc
import hashlib
import json
import os
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

READ_AT_START = (
    *("AOT", "ATEN_", "CUDA_", "CURL_", "CXX", "DNNL_", "GFORTRAN_", "GLIBC_", "GLOO_", "GOMP_"),
    *("GOTO_", "HOME", "KINETO_", "KMP_", "LANG", "LC_", "LD_", "LOGNAME", "MALLOC_", "MKL"),
    *("NCCL_", "NPY_", "NUMPY_", "OMP_", "ONEDNN_", "OPENBLAS_", "OPENSSL_", "PATH", "PT2_"),
    *("PYTHON", "PYTORCH_", "SSL_", "SYMPY_", "TEMP", "TMP", "TORCHDYNAMO_", "TORCHEXPORT_"),
    *("TORCHINDUCTOR_", "TORCH_", "TZ", "USER", "XDG_"),
)
"""How variables begin that the interpreter, torch or a library below it reads before the script
can: found by watching `os.environ` and `getenv` while torch 2.13 is imported."""
RUN_LABEL = ("LAB_RUN_ID", "LAB_RUN_DIR")
"""By these `lab.node.leftovers` knows whose a process is."""
ACCEPTED = b"accepted"
CONNECT_TIMEOUT = 30.0
"""Seconds to wait for a warm process that is still importing; after that the run starts cold, well
before its controller gives the agent up."""


@dataclass(frozen=True)
class Kind:
    """What a warm process must have been started with to be as good as a new process."""

    env: Mapping[str, str]
    """The variables that are read at start."""
    key: str

    @classmethod
    def of(cls, env: Mapping[str, str]) -> "Kind":
        """The kind of process that a rank with this environment needs, as things are now."""
        read = {name: env[name] for name in sorted(env) if name.startswith(READ_AT_START)}
        installed = [
            (path, Path(path).stat().st_mtime_ns)  # pip install touches the folder
            for path in [sys.executable, __file__, *sys.path]
            if path and Path(path).exists()
        ]
        text = json.dumps([read, installed, os.getuid()])
        return cls(read, hashlib.sha256(text.encode()).hexdigest()[:16])

    @property
    def address(self) -> str:
        """The abstract socket's name."""
        return f"\0multinode-lab-warm-{self.key}"


# The agent's side


def hand_over(kind: Kind, received: bytes) -> bool:
    """Have a warm process of that kind take over stdin, stdout, stderr, and what stdin has said.

    Returns:
        False when there is none; True when the job has been run to its end.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(CONNECT_TIMEOUT)
        try:
            connection.connect(kind.address)
            if peer_uid(connection) != os.getuid():
                return False
            message = json.dumps({"env": dict(os.environ), "received": received.decode()}).encode()
            socket.send_fds(connection, [struct.pack(">L", len(message))], [0, 1, 2])
            connection.sendall(message)
            if connection.recv(len(ACCEPTED)) != ACCEPTED:
                return False
        except OSError:
            return False
        connection.settimeout(None)
        with contextlib.suppress(OSError):
            connection.recv(1)  # ends when the agent does
    return True


def leave_warm(kind: Kind, env: Mapping[str, str], idle: float | None = None) -> None:
    """Start a warm process of that kind, in place of one of another kind; do not wait for it.

    It ends after so many seconds without work; None: it stays with its node.
    """
    subprocess.Popen(
        [sys.executable, "-u", __file__, kind.key, _record(), "" if idle is None else str(idle)],
        env={name: env[name] for name in env if name not in RUN_LABEL},  # it outlives the run
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _record() -> Path:
    """Where a node's warm process writes which one it is: beside the agent's temporary files."""
    return Path(tempfile.gettempdir()) / f"multinode-lab-warm-{os.getuid()}"


def running() -> int | None:
    """The pid of this node's warm process, by its record; None: there is none of this user."""
    from lab.node import processes

    record = _record()
    with contextlib.suppress(OSError, ValueError):
        if record.stat().st_uid == os.getuid():
            known = json.loads(record.read_text())
            if processes.lives(known):
                return int(known["pid"])
    return None


def peer_uid(connection: socket.socket) -> int:
    """Whose process is at the other end of a local socket (Linux)."""
    return peer(connection)[1]


def peer(connection: socket.socket) -> tuple[int, int]:
    """The process at the other end of a local socket, and whose it is: pid and uid (Linux)."""
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    pid, uid, _ = struct.unpack("3i", credentials)
    return pid, uid


# The warm process


def _serve(key: str, record: Path, idle: float | None) -> None:
    """Listen, replace the warm process that was here, import torch, fork an agent a connection.

    Returns after `idle` seconds without an agent; None: never.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(Kind({}, key).address)
    except OSError:
        return  # another one of the same kind was faster
    listener.listen(64)  # whoever comes while torch is being imported waits for it
    from lab.node import processes

    _replace_predecessor(record)
    with contextlib.suppress(ImportError):
        import torch
        import torch._dynamo  # what the first optimizer imports, which takes as long again
        import torch.distributed  # noqa: F401
    gc.freeze()  # what is there now stays shared between all forks
    processes.become_subreaper()
    children_end = processes.wake_on(signal.SIGCHLD)
    agents: set[int] = set()
    with selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        selector.register(children_end, selectors.EVENT_READ)
        while True:
            ready = {key.fileobj for key, _ in selector.select(None if agents else idle)}
            if not ready and not agents:
                return
            if listener in ready:
                connection, _ = listener.accept()
                if peer_uid(connection) == os.getuid():
                    pid = os.fork()
                    if pid == 0:
                        listener.close()
                        selector.close()
                        _become_agent(connection)
                    agents.add(pid)
                connection.close()
            if children_end in ready:
                os.read(children_end, 4096)
                agents -= processes.reap().keys()
                _end_orphans(agents)


def _end_orphans(agents: Collection[int]) -> None:
    """End what an agent left that was killed; as subreaper this process has been handed it.

    The end of each of them is a signal, upon which its own children are here.
    """
    from lab.node import processes

    for pid in processes.children(os.getpid()):
        if pid not in agents:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _become_agent(connection: socket.socket) -> NoReturn:
    """In the fork: run the job's agent on the descriptors that came with it."""
    from lab.node.agent import Agent
    from lab.node.protocol import NodeJob
    from lab.node.spawn import spawn_fork

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    head, fds, _, _ = socket.recv_fds(connection, 4, 3)
    (size,) = struct.unpack(">L", head)
    text = b""
    while len(text) < size:
        data = connection.recv(size - len(text))
        if not data:  # whoever wanted an agent was killed meanwhile
            os._exit(1)
        text += data
    message = json.loads(text)
    os.environ.clear()
    os.environ.update(message["env"])
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    connection.sendall(ACCEPTED)
    line, rest = message["received"].split("\n", 1)
    reports = os.dup(1)
    os.dup2(2, 1)
    Agent(NodeJob.from_json(line), 0, reports, rest.encode(), spawn_fork).run()
    os._exit(0)


def _replace_predecessor(record: Path) -> None:
    """End the warm process that ran here before, by its recorded pid and start time."""
    from lab.node import processes

    before = running()
    if before is not None:
        processes.signal_group(before, signal.SIGTERM)
    temporary = record.with_suffix(f".{os.getpid()}")
    temporary.write_text(json.dumps(processes.this_process()))
    temporary.replace(record)


def _main() -> None:
    own_folder, *rest = sys.path
    from_lab = str(Path(__file__).resolve().parent.parent.parent)
    sys.path[:] = [from_lab, *rest]
    from lab.node.spawn import BOOTSTRAP, BecomeRank

    try:
        _serve(sys.argv[1], Path(sys.argv[2]), float(sys.argv[3]) if sys.argv[3] else None)
        return
    except BecomeRank as rank:
        command = rank.command
    # From here on this is a rank, and looks like a new interpreter that runs the bootstrap. What
    # belonged to the agent goes now, not when the script has opened files of the same numbers.
    gc.collect()
    sys.path[:] = [own_folder, *rest]
    sys.argv = [str(BOOTSTRAP), *command]
    _become_rank(BOOTSTRAP)


def _renew_modules() -> None:
    """Set what modules took at their import from a process that was another one."""
    import random

    tempfile.tempdir = None
    # New processes have seeds of their own; forks would all draw the same numbers.
    random.seed()
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    logging: Any = sys.modules.get("logging")
    if logging is not None:  # a float, in nanoseconds from Python 3.13 on
        in_ns = isinstance(logging._startTime, int)
        logging._startTime = time.time_ns() if in_ns else time.time()
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = os.getcwd()  # noqa: PTH109 - where children look for the script
        process.current_process().authkey = os.urandom(32)


def _become_rank(bootstrap: Path) -> None:
    import importlib.util

    for name in [name for name in sys.modules if name == "lab" or name.startswith("lab.")]:
        del sys.modules[name]  # the script may have a `lab` of its own
    _renew_modules()
    spec = importlib.util.spec_from_file_location("_lab_bootstrap", bootstrap)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.main()


if __name__ == "__main__":
    _main()
