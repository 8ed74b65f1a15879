"""What a rank is doing, from the stack of its main thread."""

from dataclasses import dataclass, field
from enum import Enum, auto

from lab.diagnose.why.evidence import Frame, Json, Rank


class Doing(Enum):
    """What a stack tells."""

    RENDEZVOUS = auto()
    COMMUNICATION = auto()
    """In a call of torch.distributed."""
    BACKWARD = auto()
    """There DDP and FSDP wait in C++, unseen by the stack."""
    HANDLE = auto()
    """`work.wait()`, C++ as well."""
    STORE = auto()
    """It waits for a key of a store, which anybody may set."""
    DATA = auto()
    IMPORTING = auto()
    """A library, perhaps for a call that needs more of it: that may take long where many read."""
    SAVING = auto()
    LOADING = auto()
    ENDING = auto()
    """The script is at its end, and the process waits for other threads."""
    ELSE = auto()
    """In its own code, or in a library that is not known here."""
    UNKNOWN = auto()
    """There is no stack."""


def name_of(frame: Frame) -> str:
    """The function's name without that of its class."""
    return frame.function.rpartition(".")[2]


@dataclass(frozen=True)
class Activity:
    """What a rank does, and the line of the user's code from which it does it."""

    doing: Doing
    function: str | None = None
    """The library's function that the user's code has called."""
    site: Frame | None = None
    arguments: Json = field(default_factory=dict)
    """Those of that call, where it is one of torch.distributed; of a store, its `keys`."""


_RENDEZVOUS = ("init_process_group", "_env_rendezvous_handler", "rendezvous")
_DATA = ("/torch/utils/data/", "/torchdata/", "/datasets/iterable_dataset.py")
_IMPORT = ("_find_and_load", "_handle_fromlist", "<module>")
"""What an import calls, as Python's own stacks have it; py-spy's begin with the module's body."""
_CHECKPOINT = ("/torch/serialization.py", "/torch/distributed/checkpoint/", "/safetensors/")
_SYNC = "_distributed_broadcast_coalesced"
"""In it DDP's forward waits for the buffers of rank 0; its file is not among the others."""
_WRAPPERS = ("wrapper", "_wrapped_call_impl", "_call_impl", "decorate_context", "_fn", "inner")
"""Functions that only call what they wrap."""


def activity_of(rank: Rank) -> Activity:
    """Read the stack: what libraries do on behalf of the innermost line of the user's code.

    A data loader that runs in the main thread calls the user's dataset, so that the line told of
    is the dataset's; with workers, it is that of the loop.
    """
    if not rank.frames:
        return Activity(Doing.UNKNOWN)
    if rank.is_over:
        return Activity(Doing.ENDING)
    depth = next((n for n, frame in enumerate(rank.frames) if frame.user), len(rank.frames))
    site = rank.frames[depth] if depth < len(rank.frames) else None
    library = [frame for frame in rank.frames[:depth] if name_of(frame) not in _WRAPPERS]
    function = name_of(library[-1]) if library else None
    communication = [frame for frame in library if _is_communication(frame)]
    if site is not None and any(name_of(frame) in _IMPORT for frame in library):
        return Activity(Doing.IMPORTING, None, site)
    if any(name_of(frame) in _RENDEZVOUS for frame in communication):
        return Activity(Doing.RENDEZVOUS, "init_process_group", site, _merged(communication))
    if communication:
        outermost = communication[-1]
        return Activity(Doing.COMMUNICATION, name_of(outermost), site, outermost.arguments or {})
    if library and name_of(library[0]) == _SYNC:
        return Activity(Doing.COMMUNICATION, function, site)
    if any(_has(frame, _CHECKPOINT) for frame in library):
        reads = "load" in (function or "")
        return Activity(Doing.LOADING if reads else Doing.SAVING, function, site)
    if any(name_of(frame) == "_engine_run_backward" for frame in library):
        return Activity(Doing.BACKWARD, "backward", site)
    if any(_has(frame, _DATA) for frame in rank.frames):  # also those that called a dataset
        return Activity(Doing.DATA, function, site)
    if function is None and site is not None and rank.store is not None:
        return Activity(Doing.STORE, f"store.{rank.store['function']}", site, rank.store)
    if function is None and site is not None and ".wait(" in (site.code or ""):
        return Activity(Doing.HANDLE, None, site)
    return Activity(Doing.ELSE, function, site)


def _merged(frames: list[Frame]) -> Json:
    """All arguments along a stack: what an inner frame has is what came of it."""
    merged: dict[str, object] = {}
    for frame in reversed(frames):
        merged.update({k: v for k, v in (frame.arguments or {}).items() if v is not None})
    return merged


def _is_communication(frame: Frame) -> bool:
    return "/torch/distributed/" in frame.file and not _has(frame, _CHECKPOINT)


def _has(frame: Frame, parts: tuple[str, ...]) -> bool:
    return any(part in frame.file for part in parts)
