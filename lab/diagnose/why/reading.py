"""The evidence as it is read: docs/why.md describes the document."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lab.diagnose.why.callers import with_telling_callers
from lab.diagnose.why.evidence import (
    Block,
    Collective,
    Evidence,
    Exchange,
    Frame,
    GroupKey,
    Helper,
    Json,
    Node,
    Place,
    Pulse,
    Rank,
)

MODULE_CALLS = ("_wrapped_call_impl", "_call_impl")
"""What calls a module's forward and its hooks (torch.nn.Module)."""
THREADING = ("/threading.py", "/queue.py")
"""Where threads wait for each other."""
BEGINNING = "/multiprocessing/process.py"
"""Where a child process begins."""


def read_evidence(data: Json) -> Evidence:
    """Read the document. What is missing in it was not seen."""
    return Evidence(
        time=data["time"],
        because=data["because"],
        stalled_s=data.get("stalled_s"),
        world_size=data["world_size"],
        master=data.get("master"),
        nodes={name: _node(name, node) for name, node in data["nodes"].items()},
        ranks=with_telling_callers(
            {int(rank): _rank(int(rank), one) for rank, one in data["ranks"].items()}
        ),
        failure=data.get("failure"),
    )


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
    blocks = {
        (one["file"], one["line"]): tuple((kind, line, n) for kind, line, n in one["blocks"])
        for one in data.get("blocks") or ()
    }
    return Rank(
        number=number,
        node=data["node"],
        local_rank=data.get("local_rank", 0),
        ended=data.get("ended"),
        process_state=process.get("state"),
        wants_processor=process.get("busy") or process.get("state") == "R",
        children={one["pid"]: one["state"] for one in process.get("children") or ()},
        process_name=process.get("name"),
        lock_of=tuple(process.get("lock_of") or ()),
        stacks_of_children={
            one["pid"]: _since_its_beginning(one["threads"]) for one in data.get("children") or ()
        },
        source=data.get("source"),
        error=data.get("error"),
        time=data.get("time"),
        other_threads=tuple(one["name"] for one in threads if not one["main"]),
        frames=() if shown is None else stacks[shown],
        stacks=tuple(stacks),
        groups={groups[one["name"]]: one.get("backend") or "" for one in data.get("groups") or ()},
        has_left=any(one.get("left") for one in data.get("groups") or ()),
        collectives=tuple(
            _collective(groups[one["group"]], one, blocks) for one in calls if not one.get("p2p")
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
        store=None if shown is None else threads[shown].get("store"),
        helpers=_helpers(data.get("helpers") or {}),
        exchanges=tuple(
            Exchange(
                groups[one["group"]], one["number"], tuple(one["sent"]), tuple(one["expected"])
            )
            for one in data.get("exchanges") or ()
            if one["group"] in groups
        ),
    )


def _helpers(data: Json) -> tuple[Helper, ...]:
    threads = [
        Helper(one["name"], exception=one["exception"], time=one.get("time"))
        for one in data.get("threads") or ()
    ]
    processes = [
        Helper(one["name"], pid=one["pid"], code=one["code"], exception=one.get("exception"))
        for one in data.get("processes") or ()
    ]
    return (*threads, *processes)


def _since_its_beginning(threads: Sequence[Json]) -> tuple[Frame, ...]:
    """Of a process that was forked, whose stack begins with its parent's."""
    frames = [_frame(frame) for one in threads if one["main"] for frame in one["frames"]]
    began = (n for n, frame in enumerate(frames) if frame.file.endswith(BEGINNING))
    return tuple(frames[: next(began, None)])


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


def _collective(
    group: GroupKey, data: Json, blocks: Mapping[Place, tuple[Block, ...]]
) -> Collective:
    lines = [data.get("site"), *(data.get("callers") or ())]
    frames = [
        replace(frame, blocks=blocks.get((frame.file, frame.line)))
        for frame in (_frame(one) for one in lines if one is not None)
    ]
    return Collective(
        group=group,
        seq=data["seq"],
        op=data["op"],
        shapes=tuple(tuple(shape) for shape in data["shapes"]),
        dtypes=tuple(data["dtypes"]),
        done=data["done"],
        time=data.get("time"),
        site=frames[0] if frames else None,
        stack=tuple(frames[1:]),
        via="forward" if data.get("via") in MODULE_CALLS else data.get("via"),
    )
