"""The verdict on a rank that gloo has aborted: another one sent it more than it has room for.

It is not always the guilty one, and it leaves no list of its collectives; but the stack that it
left says which line it was at, and what came to it which call of the others that was.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from lab.diagnose.finding import Finding
from lab.diagnose.why.aborted.abort import MESSAGES, Abort, aborted_at
from lab.diagnose.why.aborted.messages import judge_message, senders_to
from lab.diagnose.why.aborted.room import FINISHED_TOGETHER, MET, sent
from lab.diagnose.why.aborted.smaller import Smaller, judge_smaller
from lab.diagnose.why.aborted.splits import judge_splits
from lab.diagnose.why.aborted.threads import judge_threads
from lab.diagnose.why.activity import activity_of
from lab.diagnose.why.differing import CURES, finding_of, judge_differing
from lab.diagnose.why.evidence import Collective, Evidence, Rank
from lab.diagnose.why.sequences import Divergence, first_divergence, place_of
from lab.diagnose.why.telling import at, does
from lab.diagnose.why.waits import Wait, innocents
from lab.diagnose.why.wording import short_in_words, site_in_words, who
from lab.diagnose.words import ranks_in_words

SIZES = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
"""What gloo says when more bytes come than the tensor of this rank has, before it aborts."""


def judge_aborted(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Name the rank whose call is not as the others'; None where gloo has aborted nobody."""
    failure = evidence.failure or {}
    said = [failure.get("message") or "", *(failure.get("last_lines") or ())]
    sizes = SIZES.search("\n".join(said))
    if sizes is None:
        return None
    rank = evidence.ranks[failure["rank"]]
    abort = Abort(rank, int(sizes[1]), int(sizes[2]), activity_of(rank))
    found = judge_threads(evidence, abort) or _of_calls(evidence, abort, waits)
    return replace(found, evidence=(*found.evidence, abort.told))


def _of_calls(evidence: Evidence, abort: Abort, waits: Mapping[int, Wait]) -> Finding:
    """Compare its call with those of the others."""
    if "all_to_all" in (abort.activity.function or ""):
        return judge_splits(evidence, abort, waits)
    differ = first_divergence(evidence)
    if differ is not None:
        found = _where_others_differ(evidence, abort, differ, waits)
        return found or _alone(evidence, abort, waits)
    calls = _calls_that_sent(evidence, abort)
    senders = senders_to(evidence, abort.rank)
    if not any(sent(call) for _, call in calls) and (
        abort.activity.function in MESSAGES or (senders and not calls)
    ):
        return judge_message(evidence, abort, senders, waits)
    here = place_of(abort.activity.site)
    places = {place_of(call.site) for _, call in calls}
    is_numbered = len({(call.group, call.seq) for _, call in calls}) == 1
    if here is None:
        return _alone(evidence, abort, waits)
    if is_numbered and here not in places:
        return _elsewhere(evidence, abort, calls[0], waits)
    alike = {(call.group, call.op, call.shapes, call.dtypes) for _, call in calls}
    if places == {here} and (is_numbered or len(alike) == 1):
        smaller = aborted_at(evidence, abort.activity.site)
        has = Smaller(smaller, abort.room, abort.operation)
        return at(
            judge_smaller(evidence, dict(calls), has, is_numbered, waits), abort.activity.site
        )
    return _alone(evidence, abort, waits)


def _calls_that_sent(evidence: Evidence, abort: Abort) -> list[tuple[int, Collective]]:
    """The calls of the others in which so many bytes may have been sent to it, with whose they are.

    It had begun each of those that nobody ends before all have begun.
    """
    found = []
    for group in evidence.groups:
        if abort.rank.number not in group[1]:
            continue
        lists = {n: one.called[group] for n, one in evidence.ranks.items() if one.called.get(group)}
        first = max((_first_possible(calls) for calls in lists.values()), default=0)
        for number, calls in lists.items():
            for seq, call in calls.items():
                lengths = sent(call)
                if seq >= first and (lengths is None or abort.came in lengths):
                    found.append((number, call))
    return found


def _first_possible(calls: Mapping[int, Collective]) -> int:
    """Which number the aborted rank had come to at least, as another rank has told.

    The newest does not count: a call that has failed is over as well.
    """
    over = [call for seq, call in calls.items() if call.done and seq < max(calls)]
    begun = max((call.seq for call in over if call.op in MET), default=0)
    ended = max((call.seq for call in over if call.op in FINISHED_TOGETHER), default=0)
    return max(begun, ended + 1)


def _where_others_differ(
    evidence: Evidence, abort: Abort, differ: Divergence, waits: Mapping[int, Wait]
) -> Finding | None:
    """The verdict on the others, with the aborted ranks on their sides where these are known."""
    smaller = _smaller_side(abort, differ)
    told, aborted = evidence, aborted_at(evidence, abort.activity.site)
    for number in aborted:
        told = _on_a_side(told, evidence.ranks[number], differ, smaller)
    found = first_divergence(told)
    if found is None:
        return None
    if place_of(found.called.site) == place_of(found.expected.site):
        # Not that a round of a loop was left out: of that there is no proof.
        found = replace(found, kind="mismatched-collective", count=1)
    finding = finding_of(told, found, waits)
    placed = tuple(rank for rank in aborted if told.ranks[rank].collectives)
    if not placed:
        return finding
    they, how = "it" if len(placed) == 1 else "them", "the line of the last stack puts"
    if smaller:
        how = "that more came than there was room for puts"
    side = found.others if placed[0] in found.others else found.ranks
    told_by = ranks_in_words([rank for rank in side if rank not in placed])
    read = f"{ranks_in_words(placed)} left no list: {how} {they} on the side of {told_by}"
    return replace(finding, evidence=(*finding.evidence, read))


def _smaller_side(abort: Abort, differ: Divergence) -> tuple[int, ...]:
    """The side that has less, if what came is of the other, and all are at one line; else none."""
    places = {place_of(site) for site in (differ.called.site, differ.expected.site)}
    if places != {place_of(abort.activity.site)}:
        return ()
    for smaller, larger, side in (
        (differ.called, differ.expected, differ.ranks),
        (differ.expected, differ.called, differ.others),
    ):
        room, came = sent(smaller) or (), sent(larger) or ()
        if abort.room in room and abort.came in came and abort.came not in room:
            return side
    return ()


def _on_a_side(
    evidence: Evidence, rank: Rank, differ: Divergence, smaller: tuple[int, ...]
) -> Evidence:
    """The evidence with the rank on the side whose call it was in, where the others differ.

    It is known to have come there if nobody had called that line before, or by its room.
    """
    here = place_of(activity_of(rank).site)
    for side, call in ((differ.others, differ.expected), (differ.ranks, differ.called)):
        calls = evidence.ranks[side[0]].collectives
        earlier = [one for one in calls if one.group == call.group and one.seq < call.seq]
        known = place_of(call.site) == here not in [place_of(one.site) for one in earlier]
        if side == smaller or (known and not smaller):
            return _told(evidence, rank, side[0], (*earlier, replace(call, done=False)))
    return evidence


def _elsewhere(
    evidence: Evidence, abort: Abort, sender: tuple[int, Collective], waits: Mapping[int, Wait]
) -> Finding:
    """It was at another line than those who made the call of that number.

    Up to there its list is taken for the others': their messages have met.
    """
    number, met = sender
    calls = evidence.ranks[number].collectives
    before = [call for call in calls if call.group != met.group or call.seq < met.seq]
    last = Collective(
        group=met.group,
        seq=met.seq,
        op=abort.operation,
        shapes=(),
        dtypes=(),
        done=False,
        time=met.time,
        site=abort.activity.site,
        via=abort.activity.function,
        is_recorded=False,
    )
    found = judge_differing(_told(evidence, abort.rank, number, (*before, last)), waits)
    if found is None:
        return _alone(evidence, abort, waits)
    kept = tuple(one for one in found.evidence if not one.startswith(("up to #", "the ranks diff")))
    return replace(found, evidence=(*kept, *_of_before(abort.rank, [*before, met])))


def _of_before(rank: Rank, calls: list[Collective]) -> tuple[str, ...]:
    """What is known of where the lists come apart: of an object, the length is sent first."""
    met = calls[-1]
    if met.seq == 1:
        return ()
    length = calls[-2]
    if (
        "object" in (met.via or "")
        and (length.via, length.site, length.seq) == (met.via, met.site, met.seq - 1)
        and (length.dtypes, met.dtypes) == (("int64",), ("uint8",))
    ):
        return (
            f"#{length.seq} belongs to the same {met.via}(): the ranks came apart there, or "
            "earlier",
        )
    return (f"what rank {rank.number} had called before is not known: it may differ earlier",)


def _told(
    evidence: Evidence, rank: Rank, model: int, collectives: tuple[Collective, ...]
) -> Evidence:
    """The evidence with what the rank would have told, which is in the groups of another one."""
    told = replace(rank, groups=evidence.ranks[model].groups, collectives=collectives)
    return replace(evidence, ranks={**evidence.ranks, rank.number: told})


def _alone(evidence: Evidence, abort: Abort, waits: Mapping[int, Wait]) -> Finding:
    """Nothing tells in which call of the others it was: all that is known is its own line.

    It is as much another one that may be wrong: of two ranks both are named, of more nobody is.
    """
    number = abort.rank.number
    others = [one for one in evidence.ranks.values() if one.collectives and one.number != number]
    ranks: tuple[int, ...] = (number,)
    sender = "another rank"
    if evidence.world_size > 2:
        ranks, sender = (), "another rank, which one nothing tells,"
    elif others:
        ranks, sender = (number, others[0].number), f"rank {others[0].number}"
    doing = does(replace(abort.rank, ended=None), abort.activity)
    newest = [one.collectives[-1] for one in others[:4]]
    finding = Finding(
        "mismatched-collective",
        "error",
        f"{who((number,), evidence)} {doing}: {sender} has sent more to it than it has room for",
        ranks=tuple(sorted(ranks)),
        nodes=evidence.nodes_of(ranks),
        innocent=innocents(waits, ranks) if ranks else (),
        evidence=tuple(
            f"the newest of rank {one.number}: {short_in_words(call)}{site_in_words(call.site)}"
            for one, call in zip(others, newest, strict=False)
        ),
        cure=CURES["mismatched-collective"],
    )
    return at(finding, abort.activity.site)
