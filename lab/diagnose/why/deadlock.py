"""The verdict on ranks that wait for each other in a circle."""

from collections.abc import Mapping

from lab.diagnose.finding import Finding
from lab.diagnose.why.evidence import Collective, Evidence, Rank
from lab.diagnose.why.sequences import place_of
from lab.diagnose.why.telling import at
from lab.diagnose.why.waits import Wait, circle, innocents
from lab.diagnose.why.wording import called_at, group_in_words, short_in_words, site_in_words, who
from lab.diagnose.words import ranks_in_words

COLLECTIVES = "make all calls of all groups on every member, in the same order on all ranks"
BOTH = "give every recv its send, and the other way round, before the collective that follows"
POINT_TO_POINT = (
    "let one side send first, or post the sends before the receives (isend, batch_isend_irecv)"
)


def judge_deadlock(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Name the ranks of the circle: each is right by itself, so all of them are named.

    Unless few of all ranks do not go on as in the rounds of the loop before: then those are.
    """
    order = circle(waits)
    if not order:
        return None
    steps = [
        f"rank {rank} waits for rank {after} in {waits[rank].what}{site_in_words(waits[rank].site)}"
        for rank, after in zip(order, (*order[1:], order[0]), strict=True)
    ]
    chain = " -> ".join(str(rank) for rank in (*order, order[0]))
    circled = (
        f"{ranks_in_words(sorted(order))} wait for each other in a circle ({chain}): "
        f"{'; '.join(steps)}"
    )
    missed = _missed(evidence, order)
    ranks = tuple(sorted(missed or order))
    told = ("that call was left out, or comes later than it did",) if missed else ()
    are_calls = {waits[rank].call is not None for rank in order}
    finding = Finding(
        "deadlock",
        "error",
        f"{_changed(evidence, missed)}{circled}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        innocent=innocents(waits, ranks),
        evidence=(*told, *_counters(evidence, waits, order)),
        cure=BOTH if len(are_calls) > 1 else COLLECTIVES if are_calls == {True} else POINT_TO_POINT,
    )
    return at(finding, waits[ranks[0] if missed else order[0]].site)


def _missed(evidence: Evidence, order: tuple[int, ...]) -> dict[int, Collective]:
    """What ranks of the circle called in every round before, and not now.

    Empty where more than a minority of all ranks have changed: then nobody knows who is right.
    """
    changed = {n: _left_out(rank) for n, rank in evidence.ranks.items() if rank.collectives}
    found = {n: call for n, call in changed.items() if call is not None}
    return found if found.keys() <= set(order) and 2 * len(found) < len(changed) else {}


def _left_out(rank: Rank) -> Collective | None:
    """What came before in place of its newest call, over all groups; None: that is as before."""
    calls = [
        (one.group, one.op, one.shapes, one.dtypes, place_of(one.site)) for one in rank.collectives
    ]
    newest = len(calls) - 1
    alike: dict[int, int] = {}  # by the number of an earlier call: how many before it are the same
    for earlier in range(1, newest):
        length = 0
        while length < earlier and calls[earlier - 1 - length] == calls[newest - 1 - length]:
            length += 1
        alike[earlier] = length
    most = max(alike.values(), default=0)
    rounds = [earlier for earlier, length in alike.items() if length == most > 0]
    followed = {calls[earlier] for earlier in rounds}
    if len(followed) != 1 or calls[newest] in followed:
        return None
    return rank.collectives[rounds[-1]]


def _changed(evidence: Evidence, missed: Mapping[int, Collective]) -> str:
    """Who does not go on as before, in words."""
    if not missed:
        return ""
    call = next(iter(missed.values()))
    return (
        f"{who(tuple(missed), evidence)} did not go on as in the rounds before, where "
        f"{short_in_words(call)} of {group_in_words(call.group, evidence)}{called_at(call)} "
        "came next; "
    )


def _counters(
    evidence: Evidence, waits: Mapping[int, Wait], order: tuple[int, ...]
) -> tuple[str, ...]:
    """How far each rank of the circle has come in the groups that the circle goes through."""
    groups = dict.fromkeys(wait.group for rank in order if (wait := waits[rank]).call is not None)
    return tuple(
        f"rank {rank} has begun {max(called, default=0)} collectives of "
        f"{group_in_words(group, evidence)}"
        for group in groups
        if group is not None
        for rank in sorted(order)
        if rank in group[1] and (called := evidence.ranks[rank].called.get(group, {})) is not None
    )
