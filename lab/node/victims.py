"""What a rank says whose peer has gone."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

ABORTED = 134
"""How a rank ends that gloo ends (SIGABRT): perhaps because of what another rank has sent."""
VICTIM_PATIENCE = 5.0
"""Seconds to wait for the cause after a failure that looks like a consequence.

The cause may come later: a script that raises may first leave its process group, and write a file.
"""

DISTRIBUTED_ERRORS = ("DistBackendError", "DistError", "DistNetworkError", "DistStoreError")
"""Types that only torch.distributed raises."""
SPEAKERS = ("gloo", "NCCL", "SocketImpl", "tensorpipe")
"""Who speaks in a RuntimeError of torch.distributed; scripts may raise that type as well."""
TIME_OUT_SIGNS = (
    "Timed out waiting",
    "Socket Timeout",
    "wait timeout after",
    "client socket has timed out",
)
"""Parts of their messages that tell of a time-out of a process group, or of its store."""
VICTIM_SIGNS = (
    *TIME_OUT_SIGNS,
    "Connection closed by peer",
    "Connection reset by peer",
    "connection reset by peer",
    "Connection refused",
    "connection refused",
    "Broken pipe",
    "recvValue failed",
    "sendBytes failed",
    "Read error",
    "Write error",
    "failed to connect to",
    "NCCL communicator was aborted",
    "remote process exited",
    "this error originated at tensorpipe",
)
"""Parts of their messages that tell of a consequence, not of a cause."""
_LINE_OF_TRACEBACK = re.compile(r"^(?:[\w.]+\.)?(\w+): (.+)$", re.MULTILINE)


def consequence(chain: Sequence[Mapping[str, Any]]) -> int:
    """How much an exception looks like what happens to a rank when another one has failed.

    0: not at all. 2: that is how it began. 1: that came while it handled something else, which may
    be the cause or not. Python's own errors of sockets and pipes are no sign: a script may speak
    with a data server, with workers and with whom it likes.

    Args:
        chain: the exception and those before it, the last raised first (see `lab.node.protocol`).
    """
    lost = lost_peer(chain)
    if lost is None:
        return 0
    return 2 if lost is chain[-1] else 1


def lost_peer(chain: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The exception of a chain that tells of another rank's end: of several the first raised."""
    telling = (one for one in reversed(chain) if _tells_of_lost_peer(one["kind"], one["message"]))
    return next(telling, None)


def timed_out(chain: Sequence[Mapping[str, str]]) -> bool:
    """Whether an exception tells that a process group has waited for as long as it may."""
    messages = [link["message"] for link in chain]
    return consequence(chain) > 0 and any(
        sign in message for sign in TIME_OUT_SIGNS for message in messages
    )


def _tells_of_lost_peer(kind: str, message: str) -> bool:
    if kind == "ProcessRaisedException":  # of torch.multiprocessing: has its child's traceback
        return any(_tells_of_lost_peer(*line) for line in _LINE_OF_TRACEBACK.findall(message))
    is_distributed = kind in DISTRIBUTED_ERRORS or (
        kind == "RuntimeError" and any(speaker in message for speaker in SPEAKERS)
    )
    return is_distributed and any(sign in message for sign in VICTIM_SIGNS)
