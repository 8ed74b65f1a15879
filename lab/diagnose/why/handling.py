"""What an exception has to do with a hang, of a rank that handles one while the others go on.

A rank that has raised does not end at once: its `except`, its `finally` and the ends of its `with`
come first. A collective there meets whatever the others call, who have not heard of the exception.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace

from lab.diagnose.finding import Finding
from lab.diagnose.why.activity import activity_of
from lab.diagnose.why.chains import circle
from lab.diagnose.why.evidence import Evidence, Json, Rank
from lab.diagnose.why.sequences import Divergence, first_divergence, place_of
from lab.diagnose.why.telling import does
from lab.diagnose.why.waits import LEAVING, Wait, innocents
from lab.diagnose.why.wording import (
    call_in_words,
    called_at,
    exception_in_words,
    short_in_words,
    who,
)
from lab.diagnose.words import NOBODY_KNOWS, ranks_in_words
from lab.node.victims import consequence

CURE = (
    "mend what was raised; and call no collective in an except, a finally or at the end of a with: "
    "where one rank alone has raised, the others do not come there"
)
DIFFERING = ("skipped-collective", "extra-collective", "mismatched-collective")
LATE = ("ended-early", "busy-alone")
Cause = tuple[tuple[int, ...], str]
"""The ranks that did for an exception what they are guilty of, and what that was."""


def with_handled(finding: Finding, evidence: Evidence, waits: Mapping[int, Wait]) -> Finding:
    """The finding with what the guilty ranks have raised, where they handle that meanwhile.

    Where others hang for what they do in order to handle it, they have failed.
    """
    handling = handled_alone(evidence)
    cause = _cause(finding, evidence, waits, handling)
    if cause is not None:
        return _failed(finding, evidence, waits, handling, cause)
    told = sorted(handling.keys() & {*finding.ranks})
    if not told:
        return finding
    words = exception_in_words(handling[told[0]])
    return replace(
        finding,
        summary=f"{finding.summary}; rank {told[0]} does so while it handles an exception: it "
        f"{words}",
    )


def handled_alone(evidence: Evidence) -> dict[int, Json]:
    """By rank: what it handles, if that is no consequence, and not what all handle."""
    found = {
        number: rank.handles
        for number, rank in evidence.ranks.items()
        if rank.handles is not None and not consequence(rank.handles.get("chain") or ())
    }
    # A stack that was read from outside does not tell.
    known = {n for n, rank in evidence.ranks.items() if rank.ended or rank.source == "probe"}
    alike = {reason_of(one) for one in found.values()}
    return {} if len(alike) == 1 and known <= found.keys() else found


def reason_of(exception: Json) -> tuple[str, str | None, int | None]:
    """What exceptions have in common that ranks have raised for the same reason."""
    return exception["kind"], exception["file"], exception["line"]


def _cause(
    finding: Finding, evidence: Evidence, waits: Mapping[int, Wait], handling: Mapping[int, Json]
) -> Cause | None:
    """None: that they are guilty because of an exception is not known."""
    if not handling:
        return None
    if finding.kind in DIFFERING:
        differ = first_divergence(evidence)
        return None if differ is None else _other_call(evidence, differ, handling)
    ranks: tuple[int, ...] = ()
    if finding.kind == "deadlock":
        order = circle(waits)
        ranks = tuple(sorted(handling.keys() & {*order}))
        ranks = ranks if len(ranks) < len(order) else ()
    elif finding.kind in LATE and finding.ranks:
        late = {n: evidence.ranks[n] for n in finding.ranks}
        if all(n in handling and _leaves(rank, waits) for n, rank in late.items()):
            ranks = finding.ranks
    if not ranks:
        return None
    first = evidence.ranks[ranks[0]]
    left = "has left its process groups, and " if _is_in_none(first) else ""
    return ranks, f"{left}{does(first, activity_of(first))}"


def _other_call(
    evidence: Evidence, differ: Divergence, handling: Mapping[int, Json]
) -> Cause | None:
    """That of one side, where all of it handle exceptions in that call, and none of the other.

    A majority is right all the same, unless it alone has left its way: all ranks but one may handle
    the lack of a checkpoint by training from the start.
    """
    sides = (differ.ranks, differ.called), (differ.others, differ.expected)
    for (ranks, call), (others, expected) in (sides, sides[::-1]):
        if not all(rank in handling and _is_in(evidence, differ, rank) for rank in ranks):
            continue
        if any(rank in handling for rank in others):
            continue
        has_left = _is_usual(evidence, differ, others) and not _is_usual(evidence, differ, ranks)
        if differ.certain and ranks == differ.others and not has_left:
            continue
        return ranks, (
            f"called {call_in_words(call, evidence)}{called_at(call)}, where "
            f"{ranks_in_words(others)} called {short_in_words(expected)}{called_at(expected)}"
        )
    return None


def _is_in(evidence: Evidence, differ: Divergence, number: int) -> bool:
    """Whether a rank is where it made the call that differs."""
    rank = evidence.ranks[number]
    call = rank.called.get(differ.group, {}).get(differ.seq)
    return call is not None and place_of(call.site) == place_of(activity_of(rank).site) is not None


def _is_usual(evidence: Evidence, differ: Divergence, ranks: Collection[int]) -> bool:
    """Whether ranks had called before from where they made the call that differs."""
    for rank in ranks:
        calls = evidence.ranks[rank].called.get(differ.group, {})
        here = place_of(calls[differ.seq].site) if differ.seq in calls else None
        if any(place_of(one.site) == here for seq, one in calls.items() if seq < differ.seq):
            return True
    return False


def _leaves(rank: Rank, waits: Mapping[int, Wait]) -> bool:
    """Whether it leaves, or has left, a process group in which others wait."""
    if activity_of(rank).function == LEAVING:
        return True
    awaited_in = (wait.group[1] for wait in waits.values() if wait.group is not None)
    return _is_in_none(rank) and any(rank.number in members for members in awaited_in)


def _is_in_none(rank: Rank) -> bool:
    return rank.source == "probe" and (rank.has_left or not rank.groups)


def _failed(
    finding: Finding,
    evidence: Evidence,
    waits: Mapping[int, Wait],
    handling: Mapping[int, Json],
    cause: Cause,
) -> Finding:
    """Of all those who did that, the first, and who has raised the same."""
    all_of_them, what = cause
    exception = handling[all_of_them[0]]
    ranks = tuple(n for n in all_of_them if reason_of(handling[n]) == reason_of(exception))
    they = "it handles" if len(ranks) == 1 else "they handle"
    return replace(
        finding,
        kind="failed",
        severity="error",
        summary=f"{who(ranks, evidence)} {exception_in_words(exception)}, and while {they} that "
        f"{what}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        file=exception["file"],
        line=exception["line"],
        function=None,
        innocent=innocents(waits, all_of_them),
        evidence=tuple(one for one in finding.evidence if one != NOBODY_KNOWS),
        cure=CURE,
    )
