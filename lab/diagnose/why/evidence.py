"""What was gathered from nodes and ranks, as typed objects."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

Json = Mapping[str, Any]
GroupKey = tuple[str, tuple[int, ...]]
"""A process group: its name, which ranks may use for different groups, and its global ranks."""
Place = tuple[str, int | None]
"""A file and a line."""
Block = tuple[str, int, int]
"""A `loop` or `condition`, its line and which of its branches."""
Lane = tuple[GroupKey, int | None, int]
"""Of messages: the group, the other global rank (None: received from whoever sends), the tag."""

STOPPED = "T"
"""The state of a process (proc(5)) that a signal has stopped."""
GONE = ("Z", "X", "gone")
BUSY = 0.3
"""Share of a core above which a process works. Low, since it may have to share its core."""
REACHED = ("ok", "refused")
"""What a node says of another one that it has reached: also a kernel that refuses answers."""
IDLE = 0.05
"""Share of a core below which it waits."""
WATCHED = 10.0
"""Seconds for which looks at a rank say what it does now."""
APART = 0.3
"""Seconds between two looks that tell a share: the system counts in hundredths."""


@dataclass(frozen=True)
class Frame:
    """One frame of a stack."""

    file: str
    line: int | None
    function: str
    user: bool = False
    """The user's own code, not a library's."""
    arguments: Json | None = None
    """In torch.distributed: group, src, dst and their like."""
    code: str | None = None
    """The line itself, of the innermost frame of the user's code."""
    blocks: tuple[Block, ...] | None = field(default=None, compare=False)
    """The loops and conditions that it is in; of a call's lines, where their source is known."""


@dataclass(frozen=True)
class Collective:
    """One operation of one process group, as one rank called it."""

    group: GroupKey
    seq: int
    op: str
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    done: bool
    time: float | None
    site: Frame | None
    """The line of the user's code that called it."""
    via: str | None
    """The library's function that was called there: `all_reduce`, `backward`."""
    stack: tuple[Frame, ...] = ()
    """The lines that called that one, innermost first."""
    callers: tuple[Frame, ...] = ()
    """Those that tell its calls apart."""
    is_recorded: bool = True
    """Else it was read from a stack: nothing is known of its tensors."""


@dataclass(frozen=True)
class Pulse:
    """How far a rank was at one time."""

    time: float
    cpu_s: float | None
    seqs: Mapping[str, int]
    where: str | None = None
    """The line of the user's own code."""


@dataclass(frozen=True)
class Helper:
    """A thread that an exception has ended, or a process that a rank has begun."""

    name: str
    pid: int | None = None
    """None: a thread."""
    code: int | None = None
    """How a process has ended, as multiprocessing has it; None: it runs."""
    exception: Json | None = None
    time: float | None = None
    """When it ended, by the clock of its node, where that is known."""

    @property
    def has_failed(self) -> bool:
        """Whether an exception, a code or a signal has ended it."""
        return self.exception is not None or bool(self.code)

    @property
    def runs(self) -> bool:
        """Whether it is a process that goes on."""
        return self.pid is not None and self.code is None


@dataclass(frozen=True)
class Exchange:
    """One all-to-all of a rank: bytes for each rank of the group, in its order."""

    group: GroupKey
    number: int
    """Among the all-to-alls of the group."""
    sent: tuple[int, ...]
    expected: tuple[int, ...]


@dataclass(frozen=True)
class Rank:
    """One rank, as far as it answered."""

    number: int
    node: str
    local_rank: int
    ended: Json | None
    """`code` and `signal` of its end."""
    process_state: str | None
    """R, S, D, T, Z or gone."""
    wants_processor: bool
    """Whether the process, or a child of it, wanted the processor when it was looked at."""
    children: Mapping[int, str]
    """The states of the processes that it has started, by pid."""
    process_name: str | None
    """The same for all nodes that are one machine."""
    lock_of: tuple[str, ...]
    """The processes that hold the file lock that it waits for."""
    stacks_of_children: Mapping[int, tuple[Frame, ...]]
    """The main threads' stacks of those that could be read, innermost first, without what was there
    before they began."""
    source: str | None
    error: str | None
    """Why there is no stack."""
    time: float | None
    """When it answered, by the clock of its node."""
    other_threads: tuple[str, ...]
    """Names of all but the main one."""
    frames: tuple[Frame, ...]
    """Of the main thread, innermost first; of one that communicates where it waits for that."""
    stacks: tuple[tuple[Frame, ...], ...]
    """Of all threads, the main one first."""
    groups: Mapping[GroupKey, str]
    """With the backend of each: those that it is in, or was in last."""
    has_left: bool
    """Whether it has destroyed them."""
    collectives: tuple[Collective, ...]
    """In the order in which they were called."""
    messages: Mapping[Lane, tuple[int, int]]
    """How many point-to-point messages it has begun to send, and to receive."""
    unused: tuple[str, ...]
    """Parameters without a gradient, where that can be told."""
    pulses: tuple[Pulse, ...]
    env: Json
    exception: Json | None
    """What its script raised: `file`, `line` and `chain`, as `lab.node.protocol` has it."""
    handles: Json | None
    """The same of what the thread of `frames` has raised, and handles where it is."""
    store: Json | None
    """`function` and `keys`, where that thread waits for keys of a store."""
    helpers: tuple[Helper, ...] = ()
    """Its threads that have failed, and the processes that it has begun."""
    exchanges: tuple[Exchange, ...] = ()
    """Its newest all-to-alls."""

    @cached_property
    def called(self) -> dict[GroupKey, dict[int, Collective]]:
        """What it has called in each group, by number."""
        found: dict[GroupKey, dict[int, Collective]] = {}
        for one in self.collectives:
            found.setdefault(one.group, {})[one.seq] = one
        return found

    @property
    def cpu_share(self) -> float | None:
        """How much of a core it has used of late; None where it was not looked at twice."""
        seen = [(pulse.time, pulse.cpu_s) for pulse in self.pulses if pulse.cpu_s is not None]
        seen = [look for look in seen if seen[-1][0] - look[0] <= WATCHED]
        if len(seen) < 2 or seen[-1][0] - seen[0][0] < APART:
            return None
        return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])

    @property
    def is_busy(self) -> bool:
        """Whether it uses the processor, or would if there were not too many who do."""
        share = self.cpu_share
        if share is not None and (share > BUSY or share < IDLE):
            return share > BUSY
        return self.wants_processor

    @property
    def is_idle(self) -> bool:
        """Whether it uses no processor time."""
        return self.cpu_share is not None and self.cpu_share < IDLE

    @property
    def may_have_joined(self) -> bool:
        """Whether it is in a process group, or was seen in one before.

        A stack that was read from outside does not tell of groups; only that a rank is in a call
        that needs one.
        """
        if self.groups or any(pulse.seqs for pulse in self.pulses):
            return True
        return self.source == "py-spy" and any(
            "/torch/distributed/" in frame.file for frame in self.frames
        )

    @property
    def is_in_script(self) -> bool:
        """Whether its main thread runs the user's code: it has begun, and has not ended."""
        return any(frame.user for frame in self.frames)

    @property
    def is_over(self) -> bool:
        """Whether its script has come to its end, and only waits for threads that it has begun."""
        return any(
            one.function == "_shutdown" and one.file.endswith("/threading.py")
            for one in self.frames
        )

    @property
    def is_stopped(self) -> bool:
        """Whether its process is paused."""
        return self.ended is None and self.process_state == STOPPED

    @property
    def is_gone(self) -> bool:
        """Whether its process is no more, and nobody has said how it ended."""
        return self.ended is None and self.process_state in GONE


@dataclass(frozen=True)
class Node:
    """One node, as far as it answered."""

    name: str
    alive: bool
    answered: bool
    ptrace: str | None
    peers: Mapping[str, str]
    """By node: `ok`, `refused` (a host answered), or why it cannot be reached."""
    master: Json | None
    """`resolves` and `reach`: the master's address as seen from there."""

    @property
    def cut_off_from(self) -> tuple[str, ...]:
        """The nodes that it cannot reach."""
        return tuple(name for name, how in self.peers.items() if how not in REACHED)


@dataclass(frozen=True)
class Evidence:
    """All of it."""

    time: float
    because: str
    stalled_s: float | None
    world_size: int
    master: str | None
    nodes: Mapping[str, Node]
    ranks: Mapping[int, Rank]
    failure: Json | None
    """The run's first failure, as `lab.runs.verdict.Failure` has it."""

    @cached_property
    def groups(self) -> tuple[GroupKey, ...]:
        """All process groups of which somebody has told, the largest first."""
        found = {group for rank in self.ranks.values() for group in rank.groups}
        return tuple(sorted(found, key=lambda group: (-len(group[1]), group)))

    def nodes_of(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """Where ranks are, each node once."""
        known = [self.ranks[rank].node for rank in sorted(ranks) if rank in self.ranks]
        return tuple(dict.fromkeys(known))
