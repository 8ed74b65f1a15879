"""What a controller and an agent say to each other: one JSON document a line.

The first line on an agent's stdin is its `NodeJob`. The agent answers `hello`; on `start` it starts
the ranks. The end of stdin ends the ranks and then the agent, so that nothing outlives a controller
that crashed or lost its connection.

To the agent (``type`` and fields):

=======  ==================================================================================
start    ``master_addr``, ``master_port``, ``addr`` (this node's own): start the ranks
stdin    ``data``: what rank 0 waits for; empty: the end of it
alive    nothing: the controller is still there, where the job names a `silence`
probe    ``id``, ``what`` (`pulse`, `state`, or `family`: the state, and the stacks of the processes
         that ranks which do not wait for others have started), ``peers`` (address and port by node,
         to be tried) and ``master`` (the same of the rendezvous), which may both be left out: ask
         all ranks what they do; a ``state`` for each, then ``probed``
stop     ``grace`` (seconds): terminate the ranks, kill those left after ``grace``
=======  ==================================================================================

From the agent, each with ``node``:

=========  ================================================================================
hello      ``pid``, ``host``, ``python``, ``port`` (to meet at, if asked for): ready to start
started    ``rank``, ``pid``; where torchrun numbers the ranks also ``world``: ``master``
           (address:port, another one for each world), ``nodes``, ``ranks``, ``restarts``; in a job
           of Slurm always, ``master`` and ``ranks`` alone
log        ``rank``, ``stream`` (out, err), ``data``: a chunk of output, not always whole lines;
           bytes that are no UTF-8 travel as surrogate escapes
exception  ``rank``, ``kind``, ``message``, ``file``, ``line``, ``traceback``, ``chain``, ``caught``
           (in which other process or thread torch had caught it first, as torch calls that, or
           null): the script raised; sent at once, while the process may take its time to end
context    ``rank``, ``file``, ``line``, ``chain``: the rank ends with a code that is not 0, chosen
           there (as of an ``exception``), and while it handled an exception unless ``chain`` is
           empty; ``exit`` follows
audit      ``rank``, ``record``: a fact for the judges of `lab.diagnose.audit`; ``check`` in it says
           for which, ``step`` at which optimizer step
stdin      ``rank``, ``size``: rank 0 waits for input, of about so many bytes; the controller
           answers with ``stdin``, and what the rank wrote before came before
exit       ``rank``, ``code`` (as a shell says it: 128 + n for signal n), ``signal`` (n or null),
           ``oom_limit`` (bytes, or null: it was not killed for want of memory); all that the rank
           itself wrote came before
state      ``rank``, ``id`` of the question, ``pid``, ``process`` (`lab.node.activity`), ``source``
           (probe, py-spy or null), ``probe``: what it said (`lab.rank.state`) or null, ``error``:
           why there is nothing, or why it had to be read from outside, or null. Unasked, from a
           rank whose script raised, just after ``exception`` or ``context`` (with a ``chain``), or
           has come to its end: ``probe`` alone
probed     ``id``: all have answered; ``port``, which other nodes may try; ``peers``: what came of
           trying theirs (ok, refused, timeout or another word), by node; ``master``: ``address``
           (where the ranks say that they meet, else the one asked for), ``resolves`` (what its name
           stands for here, or null) and ``reach`` (as of a peer), or null; ``ptrace``: ok, denied,
           or null where no stack had to be read from outside
torchrun   ``code``, ``message``: torchrun has ended, and all its ranks before; its last words,
           if it did not end well
error      ``message``: the agent cannot do its job; ``bye`` follows
bye        ``max_rss`` (KiB): all ranks have ended and nothing that they started is left
=========  ================================================================================

A ``chain`` is a list of at most ten: an exception (in a ``context``: SystemExit) and those that it
was raised from or while handling, the last raised first. Each is ``kind``, ``message``, ``file``
and ``line`` (the innermost of the user's own code, or null) and ``how`` the one that is told before
it came of it: `cause` (`raise ... from error`), `context` (while it was handled), `hidden` (with
`from None`, which a traceback leaves out), or null for the first.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

Message = dict[str, Any]

FROM_RANKS = {
    "exception": ("kind", "message", "file", "line", "traceback", "chain", "caught"),
    "context": ("file", "line", "chain"),
    "audit": ("record",),
    "state": ("probe",),
}
"""What a rank's bootstrap itself may tell its agent, by type; the agent adds the rest."""
STOP_GRACE = 5.0
"""Seconds that ranks have between SIGTERM and SIGKILL when the agent's stdin has ended."""


@dataclass(frozen=True)
class NodeJob:
    """One node's part of a run: all that its agent needs to know."""

    run_id: str
    run_dir: str
    """The run directory as the node sees it."""
    topology: str
    """The topology's name."""
    node: str
    node_rank: int
    nnodes: int
    first_rank: int
    """The global rank of this node's local rank 0."""
    slots: int
    """How many ranks this node runs."""
    world_size: int
    command: tuple[str, ...]
    """What each rank runs, as after `python`: `script.py ARGS` or `-m MODULE ARGS`.

    The arguments may hold the names of `lab.node.placeholders`."""
    cwd: str
    env: Mapping[str, str]
    """On top of the agent's own environment, below the rank contract."""
    port: int | None = None
    """Asked of the master's node: whether this port is free for the rendezvous; 0: pick one."""
    restart_count: int = 0
    max_restarts: int = 0
    warm: bool = False
    """Whether the node keeps a process with torch imported, and ranks may be forked from it."""
    python: bool = True
    """Whether the command is for Python; else its first word is the executable."""
    engine: str = "spawn"
    """What starts the ranks: `spawn`, the agent itself; `torchrun`, PyTorch's elastic agent."""
    min_nodes: int | None = None
    """Of torchrun: how many nodes will do; None: all, with ranks as the topology numbers them."""
    stdin: bool = False
    """Whether there is input for rank 0; all others find the end of it, and so does it without."""

    silence: float | None = None
    """Seconds without a word after which the controller counts as gone; None: it never does, since
    a stdin that has lost its other end says so."""

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self))

    def restarted(self, count: int, most: int) -> "NodeJob":
        """The same for the attempt after `count` restarts of at most `most`."""
        return replace(self, restart_count=count, max_restarts=most)

    @classmethod
    def from_json(cls, text: str) -> "NodeJob":
        """The job that `to_json` wrote; a field that this version does not know is an error."""
        data = json.loads(text)
        return cls(**{**data, "command": tuple(data["command"])})


def encode(message: Mapping[str, Any]) -> bytes:
    """One message as a line; ASCII, so that surrogate escapes survive."""
    return json.dumps(message, separators=(",", ":")).encode("ascii") + b"\n"


def decode(line: bytes) -> Message:
    """The message of one line.

    Raises:
        ValueError: it is no message.
    """
    message = json.loads(line)
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ValueError(f"not a message: {line[:80]!r}")
    return message
