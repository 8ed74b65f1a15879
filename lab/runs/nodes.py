"""The controller's end of each node: a channel to its agent, and a thread that reads it."""

import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from queue import Queue

from lab.channel import Channel
from lab.errors import LabError
from lab.node.protocol import Message, NodeJob, decode, encode
from lab.runs.job import Job
from lab.runs.verdict import signal_name
from lab.topology import Node, Topology
from lab.transport.base import Transport

QUEUE_LIMIT = 64
"""Messages that may wait for the controller. A log message holds up to 64 KiB; while the controller
is busy (a slow terminal, say) the readers wait, then the agents, then the ranks."""
STDERR_KEPT = 8192
END_PATIENCE = 1.0
"""Seconds between the end of an agent's streams and its own."""


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

    @property
    def end(self) -> str:
        """How the agent has ended, in words, where its node is still there."""
        try:
            code = self.channel.wait(timeout=END_PATIENCE)
        except (TimeoutError, OSError, LabError):  # it closed its streams; more is not known
            code = 0
        by = f" by {signal_name(code - 128)}" if code > 128 else ""
        return f"its agent {'was ended' if by else 'ended'}{by}"

    def send(self, **message: object) -> None:
        """Send one message; quiet when the agent has gone (its stream's end says so)."""
        self.channel.send(encode(message))


Inbox = Queue[tuple[AgentLink, Message | None]]
"""What the agents say; None: a node's stream has ended."""


def node_jobs(
    topology: Topology, job: Job, transport: Transport, run_id: str, run_dir: Path
) -> list[NodeJob]:
    """Each node's part of a run, by node rank."""
    first_rank = 0
    jobs = []
    for node_rank, node in enumerate(topology.nodes):
        jobs.append(
            NodeJob(
                run_id=run_id,
                run_dir=transport.place(node, run_dir),
                topology=topology.name,
                node=node.name,
                node_rank=node_rank,
                nnodes=topology.nnodes,
                first_rank=first_rank,
                slots=node.slots,
                world_size=topology.world_size,
                command=job.command,
                cwd=transport.place(node, job.start_folder),
                env={**transport.default_env(node), **topology.env, **job.variables},
                port=(topology.master.port or 0) if node_rank == 0 else None,
                warm=transport.keeps_warm and _can_fork(job),
                python=job.python,
                engine=job.engine,
                min_nodes=job.min_nodes,
                silence=transport.silence,
            )
        )
        first_rank += node.slots
    return jobs


def _can_fork(job: Job) -> bool:
    """Whether the agent may fork the ranks from a process with torch imported."""
    return job.python and not job.cold and job.engine == "spawn"


def warm_up(topology: Topology, transport: Transport, cwd: Path) -> None:
    """Have each node import torch ahead of its first run, where nodes can; does not wait for it."""
    if not transport.keeps_warm:
        return
    job = Job(command=("-c",), cwd=cwd)

    def warm(part: NodeJob) -> None:
        node = topology.nodes[part.node_rank]
        argv = [*transport.python(node), "-P", "-m", "lab.node", "--warm"]
        channel = transport.start(node, argv, cwd="/")
        channel.send(part.to_json().encode() + b"\n")
        channel.close_stdin()
        for _ in channel.output():
            pass
        channel.close()

    with ThreadPoolExecutor(min(32, topology.nnodes)) as pool:
        list(pool.map(warm, node_jobs(topology, job, transport, "", cwd)))


def connect(transport: Transport, node: Node, job: NodeJob, inbox: Inbox) -> AgentLink:
    """Start the agent of one node, hand it its job, and read it into the inbox from now on."""
    argv = [*transport.python(node), "-P", "-m", "lab.node"]
    env = {"LAB_RUN_ID": job.run_id, "LAB_RUN_DIR": job.run_dir}
    link = AgentLink(node, transport.start(node, argv, cwd="/", env=env))
    link.channel.send(job.to_json().encode() + b"\n")
    threading.Thread(target=_read, args=(link, inbox), daemon=True, name=node.name).start()
    return link


class Heartbeat:
    """Tells agents from afar, again and again, that their controller is there."""

    def __init__(self, links: Collection[AgentLink], silence: float | None) -> None:
        """`silence`: what agents take for its end (seconds); None: there is nothing to tell."""
        self._links = links
        self._over = threading.Event()
        if silence is not None:
            threading.Thread(target=self._beat, args=(silence / 4,), daemon=True).start()

    def _beat(self, pause: float) -> None:
        while not self._over.wait(pause):
            for link in self._links:
                link.send(type="alive")

    def end(self) -> None:
        """Say nothing any more."""
        self._over.set()


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
