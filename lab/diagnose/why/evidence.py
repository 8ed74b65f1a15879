"""What was gathered from nodes and ranks, as typed objects: docs/why.md describes the document."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

Json = Mapping[str, Any]
GroupKey = tuple[str, tuple[int, ...]]
"""A process group: its name, which ranks may use for different groups, and its global ranks."""
Lane = tuple[GroupKey, int | None, int]
"""Of messages: the group, the other global rank (None: received from whoever sends), the tag."""

STOPPED = "T"
"""The state of a process (proc(5)) that a signal has stopped."""
GONE = ("Z", "X", "gone")
MODULE_CALLS = ("_wrapped_call_impl", "_call_impl")
"""What calls a module's forward and its hooks (torch.nn.Module)."""
THREADING = ("/threading.py", "/queue.py")
"""Where threads wait for each other."""
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
    source: str | None
    error: str | None
    """Why there is no stack."""
    time: float | None
    """When it answered, by the clock of its node."""
    other_threads: tuple[str, ...]
    """Names of all but the main one."""
    frames: tuple[Frame, ...]
    """Of the main thread, innermost first; of one that communicates where it waits for that."""
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

    @classmethod
    def from_json(cls, data: Json) -> "Evidence":
        """Read the document. What is missing in it was not seen."""
        return cls(
            time=data["time"],
            because=data["because"],
            stalled_s=data.get("stalled_s"),
            world_size=data["world_size"],
            master=data.get("master"),
            nodes={name: _node(name, node) for name, node in data["nodes"].items()},
            ranks={int(rank): _rank(int(rank), one) for rank, one in data["ranks"].items()},
            failure=data.get("failure"),
        )

    @cached_property
    def groups(self) -> tuple[GroupKey, ...]:
        """All process groups of which somebody has told, the largest first."""
        found = {group for rank in self.ranks.values() for group in rank.groups}
        return tuple(sorted(found, key=lambda group: (-len(group[1]), group)))

    def nodes_of(self, ranks: Iterable[int]) -> tuple[str, ...]:
        """Where ranks are, each node once."""
        known = [self.ranks[rank].node for rank in sorted(ranks) if rank in self.ranks]
        return tuple(dict.fromkeys(known))


def _node(name: str, data: Json) -> Node:
    return Node(
        name,
        alive=data.get("alive", True),
        answered=data.get("answered", True),
        ptrace=data.get("ptrace"),
        peers=data.get("peers") or {},
        master=data.get("master"),
    )


def _rank(number: int, data: Json) -> Rank:
    groups = {
        one["name"]: (one["name"], tuple(sorted(one["ranks"]))) for one in data.get("groups") or ()
    }
    calls = [one for one in data.get("collectives") or () if one["group"] in groups]
    calls.sort(key=lambda one: (one.get("time") or 0.0, one["seq"]))
    process = data.get("process") or {}
    threads = sorted(data.get("threads") or (), key=lambda thread: not thread["main"])
    stacks = [tuple(_frame(frame) for frame in one["frames"]) for one in threads]
    shown = _shown(stacks)
    return Rank(
        number=number,
        node=data["node"],
        local_rank=data.get("local_rank", 0),
        ended=data.get("ended"),
        process_state=process.get("state"),
        wants_processor=process.get("busy") or process.get("state") == "R",
        children={one["pid"]: one["state"] for one in process.get("children") or ()},
        source=data.get("source"),
        error=data.get("error"),
        time=data.get("time"),
        other_threads=tuple(one["name"] for one in threads if not one["main"]),
        frames=() if shown is None else stacks[shown],
        groups={groups[one["name"]]: one.get("backend") or "" for one in data.get("groups") or ()},
        has_left=any(one.get("left") for one in data.get("groups") or ()),
        collectives=tuple(
            _collective(groups[one["group"]], one) for one in calls if not one.get("p2p")
        ),
        messages={
            (groups[one["group"]], one["peer"], one["tag"]): (one["sent"], one["received"])
            for one in data.get("messages") or ()
            if one["group"] in groups
        },
        unused=tuple(data.get("unused") or ()),
        pulses=tuple(
            Pulse(one["time"], one.get("cpu_s"), one.get("seqs") or {}, one.get("where"))
            for one in data.get("pulses") or ()
        ),
        env=data.get("env") or {},
        exception=data.get("exception"),
        handles=None if shown is None else threads[shown].get("handles"),
    )


def _shown(stacks: list[tuple[Frame, ...]]) -> int | None:
    """Whose stack tells: the first, of the main thread, unless that only waits for another's work.

    None: there is no stack.
    """
    if not stacks or not stacks[0]:
        return None
    main, *others = stacks
    if main[0].file.endswith(THREADING):
        for number, frames in enumerate(others, 1):
            if any("/torch/distributed/" in frame.file for frame in frames):
                return number
        working = [n for n, frames in enumerate(others, 1) if any(frame.user for frame in frames)]
        if len(working) == 1 and any(frame.function.endswith("join") for frame in main[:3]):
            return working[0]
    return 0


def _frame(data: Json) -> Frame:
    return Frame(
        data["file"],
        data.get("line"),
        data["function"],
        data.get("user", False),
        data.get("arguments"),
        data.get("code"),
    )


def _collective(group: GroupKey, data: Json) -> Collective:
    site = data.get("site")
    return Collective(
        group=group,
        seq=data["seq"],
        op=data["op"],
        shapes=tuple(tuple(shape) for shape in data["shapes"]),
        dtypes=tuple(data["dtypes"]),
        done=data["done"],
        time=data.get("time"),
        site=None if site is None else _frame(site),
        via="forward" if data.get("via") in MODULE_CALLS else data.get("via"),
    )
