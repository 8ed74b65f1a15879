"""What a rank says whose peer has gone."""

VICTIM_SIGNS = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Connection refused",
    "Broken pipe",
    "Socket Timeout",
    "recvValue failed",
    "sendBytes failed",
    "Read error",
    "Write error",
    "failed to connect to",
    "NCCL communicator was aborted",
    "remote process exited",
)
"""Parts of torch's, gloo's and NCCL's messages that tell of a consequence, not of a cause."""


def looks_like_victim(message: str | None) -> bool:
    """Whether an exception's message is what happens to a rank when another one has failed."""
    return message is not None and any(sign in message for sign in VICTIM_SIGNS)
