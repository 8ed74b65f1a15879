"""Whose messages are odd, where ranks wait for each other: by how many each of them has begun.

A message alone does not tell which of its two sides is wrong. What most of the others do tells.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from lab.diagnose.why.evidence import Evidence, GroupKey
from lab.diagnose.why.waits import Wait
from lab.diagnose.why.wording import who
from lab.diagnose.words import ranks_in_words

Way = tuple[int, int, GroupKey, int]
"""From whom to whom, in which group, with which tag."""
NO_PARTNER = (
    "give every message a send and a recv: see whether the peers (src, dst) and the number of "
    "rounds go together"
)
SENT, RECEIVED = 0, 1
WORDS = ("sent", "received")


@dataclass(frozen=True)
class Odd:
    """Who of a circle is guilty, by what the others do."""

    ranks: tuple[int, ...]
    what: str
    """What they did differently: the summary begins with it."""
    why: str | None = None
    """More evidence."""
    cure: str | None = None


def sent_to(evidence: Evidence, wait: Wait) -> dict[int, int]:
    """How many messages each that may send has begun to send, of those that would end the wait."""
    assert wait.lane is not None
    group, tag = wait.lane
    return {
        peer: evidence.ranks[peer].messages.get((group, wait.rank, tag), (0, 0))[SENT]
        for peer in sorted(wait.awaited)
        if peer in evidence.ranks
    }


def narrowed(evidence: Evidence, waits: Mapping[int, Wait]) -> dict[int, Wait]:
    """The same, but those who receive from any rank wait for the one that has sent too few."""
    found = dict(waits)
    for number, wait in waits.items():
        if wait.lane is None or not _come_as_far(evidence, waits, wait.awaited):
            continue
        one = _fewer(sent_to(evidence, wait))
        if one is not None:
            found[number] = replace(wait, awaited=frozenset({one}))
    return found


def odd_of(evidence: Evidence, waits: Mapping[int, Wait], order: Sequence[int]) -> Odd | None:
    """Who of a circle is guilty of its messages; None where nothing tells."""
    return _wrong_peer(evidence, waits, order) or _too_few(evidence, waits, order)


def _come_as_far(evidence: Evidence, waits: Mapping[int, Wait], ranks: Collection[int]) -> bool:
    """Whether all wait in one call: who has not come as far may send yet."""
    calls = {waits[n].what if n in waits and not waits[n].tags else None for n in ranks}
    return len(calls) == 1 and None not in calls and all(_has_told(evidence, n) for n in ranks)


def _has_told(evidence: Evidence, number: int) -> bool:
    """Whether a rank itself has said how many messages it has begun."""
    return number in evidence.ranks and evidence.ranks[number].source == "probe"


def _takes_any(evidence: Evidence, way: Way) -> bool:
    """Whether the one to whom a message goes receives from any rank."""
    _, number, group, tag = way
    return (group, None, tag) in evidence.ranks[number].messages


def _fewer(counts: Mapping[int, int]) -> int | None:
    """The one that has fewer than the others, of which there are several, all with as many."""
    if len(counts) < 3:
        return None
    least = min(counts, key=lambda rank: counts[rank])
    others = {count for rank, count in counts.items() if rank != least}
    return least if len(others) == 1 and counts[least] not in others else None


def _too_few(evidence: Evidence, waits: Mapping[int, Wait], order: Sequence[int]) -> Odd | None:
    """Who has sent or received less often than all others that have come as far."""
    for rank, peer in zip(order, (*order[1:], order[0]), strict=True):
        wait = waits[rank]
        if wait.lane is not None:
            counts = sent_to(evidence, replace(wait, awaited=frozenset(wait.lane[0][1]) - {rank}))
            if _fewer(counts) == peer:
                return _few(evidence, peer, counts, f"rank {rank} ", SENT)
            continue
        if not wait.tags or waits[peer].call is None:
            continue
        call = waits[peer].what
        along = [n for n, one in waits.items() if one.what == call and _has_told(evidence, n)]
        for way in (SENT, RECEIVED):
            counts = {
                n: sum(lane[way] for lane in evidence.ranks[n].messages.values()) for n in along
            }
            if _fewer(counts) == peer and _is_short(evidence, rank, peer, way):
                return _few(evidence, peer, counts, "", way)
    return None


def _is_short(evidence: Evidence, rank: int, peer: int, way: int) -> bool:
    """Whether the peer has had messages with the other one, and begun too few of this way."""
    for (group, other, tag), counts in evidence.ranks[peer].messages.items():
        theirs = evidence.ranks[rank].messages.get((group, peer, tag), (0, 0))[1 - way]
        if other == rank and 0 < counts[way] < theirs:
            return True
    return False


def _few(evidence: Evidence, rank: int, counts: Mapping[int, int], whom: str, way: int) -> Odd:
    others = [n for n in counts if n != rank]
    return Odd(
        (rank,),
        f"{who((rank,), evidence)} has {WORDS[way]} {whom}fewer messages than "
        f"{ranks_in_words(others)}: {counts[rank]}, where they have {WORDS[way]} "
        f"{counts[others[0]]} each; ",
        cure=NO_PARTNER,
    )


def _wrong_peer(evidence: Evidence, waits: Mapping[int, Wait], order: Sequence[int]) -> Odd | None:
    """The rank at which a message that nobody asks for meets a receive that nobody sends for.

    If it is the only one of them, and what it should have done is what most others do, as from one
    rank to the next: else it may be only that it comes too late.
    """
    if any(not waits[rank].tags for rank in order):
        return None
    if not all(_has_told(evidence, number) for number in range(evidence.world_size)):
        return None
    begun = _begun(evidence)
    unasked = [
        way
        for way, counts in begun.items()
        if counts[SENT] and not counts[RECEIVED] and not _takes_any(evidence, way)
    ]
    unsent = [way for way, counts in begun.items() if counts[RECEIVED] and not counts[SENT]]
    found = [
        (rank, sent, asked)
        for sent in unasked
        for asked in unsent
        for rank in order
        if sent[2:] == asked[2:]
        # It sends to the wrong one, or receives from the wrong one.
        and (sent[0] == asked[0] == rank or sent[1] == asked[1] == rank)
    ]
    if len(found) != 1:
        return None
    ((rank, sent, asked),) = found
    sends = sent[0] == rank
    meant = (rank, asked[1]) if sends else (sent[0], rank)
    did = sent[:2] if sends else asked[:2]
    steps = _steps(evidence, begun, SENT if sends else RECEIVED, rank)
    if 2 * steps.count(_step(evidence, meant)) <= len(steps) or _step(evidence, did) in steps:
        return None
    asks = f"rank {asked[1]} receives from rank {asked[0]}, which has sent it nothing"
    gives = f"rank {sent[0]} sends to rank {sent[1]}, which receives nothing from it"
    told = (gives, asks) if sends else (asks, gives)
    most = f"send to rank {_place(evidence, meant)}, here rank {meant[1]}"
    if not sends:
        most = f"receive from rank {_place(evidence, meant[::-1])}, here rank {meant[0]}"
    return Odd(
        (rank,),
        f"{who((rank,), evidence)} has a wrong peer, or order: {told[0]}, and {told[1]}; "
        f"most others {most}; ",
        cure=f"see the peer ({'dst' if sends else 'src'}) of this rank, and the order of its "
        "messages",
    )


def _begun(evidence: Evidence) -> dict[Way, tuple[int, int]]:
    """How many messages have begun to be sent, and to be received, from one rank to another."""
    found: dict[Way, tuple[int, int]] = {}
    for number, rank in evidence.ranks.items():
        for (group, peer, tag), (sent, received) in rank.messages.items():
            if peer is None:
                continue
            for way, counts in (
                ((number, peer, group, tag), (sent, 0)),
                ((peer, number, group, tag), (0, received)),
            ):
                before = found.get(way, (0, 0))
                found[way] = (before[0] + counts[0], before[1] + counts[1])
    return found


def _steps(
    evidence: Evidence, begun: Mapping[Way, tuple[int, int]], which: int, but: int
) -> list[int]:
    """How far the peers of all ranks but one lie from them."""
    return [
        _step(evidence, way[:2])
        for way, counts in begun.items()
        if counts[which] and way[which] != but
    ]


def _step(evidence: Evidence, pair: tuple[int, int]) -> int:
    return (pair[1] - pair[0]) % evidence.world_size


def _place(evidence: Evidence, pair: tuple[int, int]) -> str:
    """`(their own) - 1`: where the second lies, as seen from the first."""
    step = _step(evidence, pair)
    step -= evidence.world_size * (2 * step > evidence.world_size)
    return f"(their own) {'-' if step < 0 else '+'} {abs(step)}"
