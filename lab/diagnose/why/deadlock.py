"""The verdict on ranks that wait for each other in a circle."""

from collections.abc import Mapping, Sequence
from operator import eq

from lab.diagnose.finding import Finding
from lab.diagnose.why.chains import circle
from lab.diagnose.why.differing import CURES
from lab.diagnose.why.evidence import Collective, Evidence, Place, Rank
from lab.diagnose.why.messages import NO_PARTNER, Odd, odd_of, sent_to
from lab.diagnose.why.sequences import place_of, rounds
from lab.diagnose.why.telling import at, seen
from lab.diagnose.why.waits import Wait, innocents
from lab.diagnose.why.wording import (
    called_at,
    group_in_words,
    short_in_words,
    site_in_words,
    who,
)
from lab.diagnose.words import ranks_in_words

COLLECTIVES = "make all calls of all groups on every member, in the same order on all ranks"
BOTH = "give every recv its send, and the other way round, before the collective that follows"
LOCKS = "let no rank wait for others while it holds a lock that they take"
POINT_TO_POINT = (
    "let one side send first, or post the sends before the receives (isend, batch_isend_irecv)"
)
OTHER_TAG = "give a send and its recv the same tag: a message waits for the recv of its own"
LEFT_OUT = "that call was left out, or comes later than it did"


def judge_gone_past(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Name who is in a later collective, where most wait in a call that has no number.

    That is a monitored_barrier: it is made of messages, which the recorder does not have.
    """
    together: dict[tuple[str, Place | None], list[int]] = {}
    for number, wait in sorted(waits.items()):
        if wait.call is None and wait.group is not None and not wait.tags:
            together.setdefault((wait.what, place_of(wait.site)), []).append(number)
    for ranks in together.values():
        group = waits[ranks[0]].group
        assert group is not None
        past = tuple(n for n in group[1] if n not in ranks)
        if not past or len(past) >= len(ranks):
            continue
        if all(n in waits and waits[n].call is not None for n in past):
            return _gone_past(evidence, waits, ranks, past)
    return None


def _gone_past(
    evidence: Evidence, waits: Mapping[int, Wait], ranks: Sequence[int], past: tuple[int, ...]
) -> Finding:
    wait, theirs = waits[ranks[0]], waits[past[0]]
    finding = Finding(
        "skipped-collective",
        "error",
        f"{who(past, evidence)} skipped {wait.what}, in which {ranks_in_words(ranks)} "
        f"wait{site_in_words(wait.site)}, and went on to {theirs.what}{site_in_words(theirs.site)}",
        ranks=past,
        nodes=evidence.nodes_of(past),
        innocent=innocents(waits, past),
        cure=CURES["skipped-collective"],
    )
    return at(finding, theirs.site)


def judge_deadlock(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Name the ranks of the circle: each is right by itself, so all of them are named.

    Unless few of all ranks do not go on as in the rounds of the loop before, or have made a call
    less often than the ranks of other groups: then those are.
    """
    order = circle(waits)
    if not order:
        return None
    if any(waits[rank].lane is not None and len(waits[rank].awaited) > 1 for rank in order):
        return _from_anybody(evidence, waits, order)
    steps = [
        f"rank {rank} waits for rank {after} in {waits[rank].what}{site_in_words(waits[rank].site)}"
        for rank, after in zip(order, (*order[1:], order[0]), strict=True)
    ]
    chain = " -> ".join(str(rank) for rank in (*order, order[0]))
    circled = (
        f"{ranks_in_words(sorted(order))} wait for each other in a circle ({chain}): "
        f"{'; '.join(steps)}"
    )
    known = (
        _changed(evidence, order)
        or _fewer(evidence, waits, order)
        or _elsewhere(evidence, waits, order)
        or _holder(evidence, waits, order)
        or odd_of(evidence, waits, order)
    )
    ranks, what = (known.ranks, known.what) if known else (tuple(sorted(order)), "")
    told = () if known is None or known.why is None else (known.why,)
    finding = Finding(
        "deadlock",
        "error",
        f"{what}{circled}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        innocent=innocents(waits, ranks),
        evidence=(*told, *_counters(evidence, waits, order), *_messages(evidence, waits, order)),
        cure=(known and known.cure) or _cure([waits[rank] for rank in order]),
    )
    return at(finding, waits[ranks[0] if known else order[0]].site)


def _cure(circled: Sequence[Wait]) -> str:
    if any(wait.for_lock for wait in circled):
        return LOCKS
    are_calls = {wait.call is not None for wait in circled}
    if len(are_calls) > 1:
        return BOTH
    if are_calls == {True}:
        return COLLECTIVES
    if len({wait.tags for wait in circled}) > 1:
        return OTHER_TAG
    return NO_PARTNER if all(wait.is_posted for wait in circled) else POINT_TO_POINT


def _from_anybody(evidence: Evidence, waits: Mapping[int, Wait], order: tuple[int, ...]) -> Finding:
    """One waits for a message of whoever sends, and nothing tells who should have sent more."""
    number = next(rank for rank in order if waits[rank].lane is not None)
    wait = waits[number]
    everybody = {number, *wait.awaited}
    finding = Finding(
        "unknown",
        "warning",
        f"{who((number,), evidence)} waits in {wait.what}{site_in_words(wait.site)}; "
        f"{ranks_in_words(sorted(wait.awaited))} may send, and wait themselves: one has sent too "
        f"few messages, or rank {number} receives too many",
        innocent=innocents(waits, everybody),
        evidence=(
            *(
                f"rank {peer} has begun to send rank {number} {count} message{'s' * (count != 1)}"
                for peer, count in sent_to(evidence, wait).items()
            ),
            *(seen(evidence.ranks[n]) for n in sorted(everybody) if n in evidence.ranks),
        ),
        cure=NO_PARTNER,
    )
    return at(finding, wait.site)


def _changed(evidence: Evidence, order: tuple[int, ...]) -> Odd | None:
    """Who of the circle does not go on as in every round before, where few of all ranks do so.

    Else nobody knows who is right.
    """
    news = {n: _left_out(rank) for n, rank in evidence.ranks.items() if rank.collectives}
    found = {n: call for n, call in news.items() if call is not None}
    if not found or not found.keys() <= set(order) or 2 * len(found) >= len(news):
        return None
    ranks = tuple(sorted(found))
    return Odd(
        ranks,
        f"{who(ranks, evidence)} did not go on as in the rounds before, where "
        f"{_named(evidence, found[ranks[0]])} came next; ",
        LEFT_OUT,
    )


def _fewer(evidence: Evidence, waits: Mapping[int, Wait], order: tuple[int, ...]) -> Odd | None:
    """The rank that has made the call that is waited for once less often than all others.

    Those in other groups count as well: they have gone through the same lines (a mesh).
    """
    found: dict[int, Collective] = {}
    for rank, late in zip(order, (*order[1:], order[0]), strict=True):
        call = waits[rank].call
        place = None if call is None else place_of(call.site)
        if call is None or place is None or waits[late].call is None:
            continue  # who waits for a message is behind for want of it
        counts = {
            number: sum(place_of(one.site) == place for one in other.collectives)
            for number, other in evidence.ranks.items()
        }
        behind = counts.pop(late)
        others = {count for count in counts.values() if count}
        if len(counts) > 2 and behind > 0 and others == {behind + 1}:
            found[late] = call
    if len(found) != 1:
        return None
    ((late, call),) = found.items()
    return Odd(
        (late,),
        f"{who((late,), evidence)} has called {_named(evidence, call)} once less often than the "
        "others have called that line; ",
        LEFT_OUT,
    )


def _elsewhere(evidence: Evidence, waits: Mapping[int, Wait], order: tuple[int, ...]) -> Odd | None:
    """The few that wait in another call than most do, where all could be in either."""
    calls = [waits[rank].call for rank in order]
    members = {call.group[1] for call in calls if call is not None}
    if None in calls or len(members) != 1:
        return None
    together: dict[tuple[str, Place | None], list[int]] = {}
    for number in members.pop():
        if number not in waits or waits[number].call is None:
            return None
        wait = waits[number]
        together.setdefault((wait.what, place_of(wait.site)), []).append(number)
    most = max(together.values(), key=len)
    few = tuple(sorted(n for ranks in together.values() if ranks is not most for n in ranks))
    if len(most) <= len(few) or not any(rank in most for rank in order):
        return None
    wait, theirs = waits[few[0]], waits[most[0]]
    return Odd(
        few,
        f"{who(few, evidence)} wait{'s' * (len(few) == 1)} in {wait.what}"
        f"{site_in_words(wait.site)}, where {ranks_in_words(most)} wait in {theirs.what}"
        f"{site_in_words(theirs.site)}; ",
    )


def _holder(evidence: Evidence, waits: Mapping[int, Wait], order: tuple[int, ...]) -> Odd | None:
    """Who waits for others while it holds the only file lock of the circle."""
    pairs = zip(order, (*order[1:], order[0]), strict=True)
    held = [(rank, holder) for rank, holder in pairs if waits[rank].for_lock]
    if len(held) != 1:
        return None
    ((_, holder),) = held
    others = [n for n, wait in sorted(waits.items()) if wait.for_lock and holder in wait.awaited]
    return Odd(
        (holder,),
        f"{who((holder,), evidence)} holds a file lock for which {ranks_in_words(others)} "
        f"wait{'s' * (len(others) == 1)}, and waits for others itself; ",
    )


def _named(evidence: Evidence, call: Collective) -> str:
    group = group_in_words(call.group, evidence)
    return f"{short_in_words(call)} of {group}{called_at(call)}"


def _left_out(rank: Rank) -> Collective | None:
    """What came before in place of its newest call, over all groups; None: that is as before."""
    keys = [
        (one.group, one.op, one.shapes, one.dtypes, place_of(one.site)) for one in rank.collectives
    ]
    newest = len(keys) - 1
    before = [earlier + 1 for earlier in rounds(dict(enumerate(keys)), newest, eq)]
    followed = {keys[earlier] for earlier in before}
    if len(followed) != 1 or keys[newest] in followed or keys[newest] not in keys[:newest]:
        return None  # what was never called before may be right: once in a hundred steps, say
    return rank.collectives[before[-1]]


def _counters(
    evidence: Evidence, waits: Mapping[int, Wait], order: tuple[int, ...]
) -> tuple[str, ...]:
    """How far each rank of the circle has come in the groups that the circle goes through."""
    groups = dict.fromkeys(wait.group for rank in order if (wait := waits[rank]).call is not None)
    return tuple(
        f"rank {rank} has begun {(count := max(called, default=0))} collective"
        f"{'s' * (count != 1)} of {group_in_words(group, evidence)}"
        for group in groups
        if group is not None
        for rank in sorted(order)
        if rank in group[1] and (called := evidence.ranks[rank].called.get(group, {})) is not None
    )


def _messages(
    evidence: Evidence, waits: Mapping[int, Wait], order: tuple[int, ...]
) -> tuple[str, ...]:
    """How many messages those who wait for one have begun to take, and the others to send."""
    told = []
    for rank, peer in zip(order, (*order[1:], order[0]), strict=True):
        lanes = evidence.ranks[rank].messages
        for (group, other, tag), (sent, received) in lanes.items():
            if other != peer or tag not in waits[rank].tags:
                continue
            theirs = evidence.ranks[peer].messages.get((group, rank, tag), (0, 0))
            for mine, met, what, way, back in (
                (received, theirs[0], "receive", "from", "send"),
                (sent, theirs[1], "send", "to", "receive"),
            ):
                if mine > met:
                    messages = f"{mine} message{'s' * (mine > 1)} {way} rank {peer}"
                    begun = f"rank {rank} has begun to {what} {messages}"
                    told.append(f"{begun}, which has begun to {back} {met}")
    return tuple(told)
