"""The controller's end of each node: a channel to its agent, and a thread that reads it."""

import threading
from dataclasses import dataclass, field
from queue import Queue

from lab.node.protocol import Message, NodeJob, decode, encode
from lab.topology import Node
from lab.transport.base import Channel, Transport

QUEUE_LIMIT = 64
"""Messages that may wait for the controller. A log message holds up to 64 KiB; while the controller
is busy (a slow terminal, say) the readers wait, then the agents, then the ranks."""
STDERR_KEPT = 8192


@dataclass
class AgentLink:
    """One node's agent, as the controller sees it."""

    node: Node
    channel: Channel
    greeted: bool = False
    """Whether it has said hello."""
    said_bye: bool = False
    done: bool = False
    """Whether its stream has ended."""
    port: int | None = None
    max_rss_kib: int = 0
    stderr: bytes = field(default=b"", repr=False)
    """The end of what the agent itself wrote to stderr: why it broke, if it did."""

    def send(self, **message: object) -> None:
        """Send one message; quiet when the agent has gone (its stream's end says so)."""
        self.channel.send(encode(message))


Inbox = Queue[tuple[AgentLink, Message | None]]
"""What the agents say; None: a node's stream has ended."""


def connect(transport: Transport, node: Node, job: NodeJob, inbox: Inbox) -> AgentLink:
    """Start the agent of one node, hand it its job, and read it into the inbox from now on."""
    argv = [*transport.python(), "-P", "-m", "lab.node"]
    env = {"LAB_RUN_DIR": job.run_dir}
    link = AgentLink(node, transport.start(node, argv, cwd="/", env=env))
    link.channel.send(job.to_json().encode() + b"\n")
    threading.Thread(target=_read, args=(link, inbox), daemon=True, name=node.name).start()
    return link


def _read(link: AgentLink, inbox: Inbox) -> None:
    pending: list[bytes] = []
    try:
        for stream, data in link.channel.output():
            if stream == "err":
                link.stderr = (link.stderr + data)[-STDERR_KEPT:]
                continue
            head, *rest = data.split(b"\n")
            pending.append(head)
            for piece in rest:  # a new line has ended all that was pending
                inbox.put((link, decode(b"".join(pending))))
                pending = [piece]
    except (OSError, ValueError) as error:  # the connection broke, or what came is no message
        link.stderr += str(error).encode()
    inbox.put((link, None))
