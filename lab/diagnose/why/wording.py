"""Collectives, groups and ranks as sentences have them."""

from collections.abc import Collection

from lab.diagnose.why.evidence import Collective, Evidence, Frame, GroupKey, Json
from lab.diagnose.words import origin_in_words, place_in_words, ranks_in_words
from lab.node.words import shortened

DEFAULT_GROUP = "0"
"""The name that torch gives the group of all ranks."""


def group_in_words(group: GroupKey | None, evidence: Evidence) -> str:
    """`the default group`, or `group 3 (ranks 0, 2)`."""
    if group is None or (group[0] == DEFAULT_GROUP and len(group[1]) == evidence.world_size):
        return "the default group"
    return f"group {group[0]} ({ranks_in_words(group[1])})"


def tensors_in_words(call: Collective) -> str:
    """`[4,64] float32`; of several, the first and how many; empty for a barrier."""
    if not call.dtypes:
        return ""
    shape = ",".join(str(size) for size in call.shapes[0]) if call.shapes else ""
    more = f" and {len(call.dtypes) - 1} more" if len(call.dtypes) > 1 else ""
    return f"[{shape}] {call.dtypes[0]}{more}"


def short_in_words(call: Collective) -> str:
    """`all_reduce [4,64] float32`."""
    return " ".join(part for part in (call.op.lstrip("_"), tensors_in_words(call)) if part)


def call_in_words(call: Collective, evidence: Evidence) -> str:
    """`all_reduce #17 [4,64] float32 of the default group`."""
    tensors = tensors_in_words(call)
    name = f"{call.op.lstrip('_')} #{call.seq}{' ' if tensors else ''}{tensors}"
    return f"{name} of {group_in_words(call.group, evidence)}"


def site_in_words(site: Frame | None, via: str | None = None) -> str:
    """` in backward() at train.py:88 (step)`: a library's function, the line that called it."""
    if site is None:
        return ""
    through = f"in {via}() " if via else ""
    inside = "" if site.function == "<module>" else f" ({site.function})"
    return f" {through}at {place_in_words(site.file, site.line)}{inside}"


def called_at(call: Collective) -> str:
    """From where a collective was called, and through what of a library if not directly.

    With the callers of that line, where it is called from several.
    """
    place = site_in_words(call.site, None if call.via == call.op.lstrip("_") else call.via)
    callers = ",".join(site_in_words(frame) for frame in call.callers)
    return f"{place}, called{callers}" if callers else place


def who(ranks: Collection[int], evidence: Evidence) -> str:
    """`rank 3 (node1, local 1)`, `ranks 0, 1 (node0)`, or plain ranks where they are many."""
    nodes = evidence.nodes_of(ranks)
    if len(ranks) == 1 and nodes:
        (rank,) = ranks
        return f"rank {rank} ({nodes[0]}, local {evidence.ranks[rank].local_rank})"
    there = f" ({', '.join(nodes)})" if 0 < len(nodes) <= 3 else ""
    return f"{ranks_in_words(ranks)}{there}"


def raised_in_words(kind: str, message: str | None) -> str:
    """`raised ValueError: sample 7 is no number`: with the first line of what it says."""
    first = (message or "").strip().partition("\n")[0]
    return shortened(f"raised {kind}{f': {first}' if first else ''}")


def exception_in_words(exception: Json) -> str:
    """The same with its place: `raised ValueError: sample 7 is no number (train.py:9)`."""
    place = place_in_words(exception["file"], exception["line"])
    words = raised_in_words(exception["kind"], exception["message"])
    return words + (f" ({place})" if place else "") + origin_in_words(exception.get("chain") or ())
