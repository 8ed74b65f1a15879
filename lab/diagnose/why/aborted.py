"""The verdict on a rank that gloo has aborted: another one sent it more than it has room for.

It is not always the guilty one, and it leaves no list of its collectives; but the stack that it
left says which call it was in. That call is compared with what the others called.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from lab.diagnose.finding import Finding
from lab.diagnose.why.activity import Activity, activity_of
from lab.diagnose.why.differing import CURES, judge_differing
from lab.diagnose.why.evidence import Collective, Evidence, Rank
from lab.diagnose.why.sequences import Divergence, first_divergence, place_of
from lab.diagnose.why.telling import at, does
from lab.diagnose.why.waits import Wait, innocents
from lab.diagnose.why.wording import who

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
    told = f"gloo ended rank {rank.number}: {sizes[1]} bytes came, and it had room for {sizes[2]}"
    if "all_to_all" in (activity_of(rank).function or ""):
        return _by_somebody(rank, waits, told)
    differ = first_divergence(evidence)
    if differ is None:
        found = judge_differing(_with_last_call(evidence, rank, came=int(sizes[1])), waits)
        if found is not None:  # what it called before nobody knows
            kept = tuple(one for one in found.evidence if not one.startswith("up to #"))
            found = replace(found, evidence=kept)
    else:
        found = judge_differing(_on_a_side(evidence, rank, differ), waits)
    if found is None:
        found = at(_alone(evidence, rank, waits), activity_of(rank).site)
    return replace(found, evidence=(*found.evidence, told))


def _on_a_side(evidence: Evidence, rank: Rank, differ: Divergence) -> Evidence:
    """The evidence with the rank on the side whose call it was in, where the others differ.

    It is known to have come there if nobody had called that line before.
    """
    activity = activity_of(rank)
    for side, call in ((differ.others, differ.expected), (differ.ranks, differ.called)):
        calls = evidence.ranks[side[0]].collectives
        earlier = [one for one in calls if one.group == call.group and one.seq < call.seq]
        here = place_of(call.site)
        if here == place_of(activity.site) and here not in [place_of(one.site) for one in earlier]:
            return _told(evidence, rank, side[0], (*earlier, replace(call, done=False)))
    return evidence


def _with_last_call(evidence: Evidence, rank: Rank, came: int) -> Evidence:
    """The evidence as if the rank had told: up to its last call its list is the others'."""
    others = [one for one in evidence.ranks.values() if one.collectives and one is not rank]
    if not others:
        return evidence
    model = max(others, key=lambda one: one.collectives[-1].seq)
    activity = activity_of(rank)
    met = _met(model.collectives, activity, came)
    before = [call for call in model.collectives if call.group != met.group or call.seq < met.seq]
    last = Collective(
        group=met.group,
        seq=met.seq,
        op=activity.function or "a collective",
        shapes=(),
        dtypes=(),
        done=False,
        time=met.time,
        site=activity.site,
        via=activity.function,
        is_recorded=False,
    )
    return _told(evidence, rank, model.number, (*before, last))


def _met(calls: Sequence[Collective], activity: Activity, came: int) -> Collective:
    """The call of another rank that it was in: the newest.

    A function that sends objects makes two calls, and some ranks may have left it: of these two,
    the one that has sent so many bytes.
    """
    if "object" not in (activity.function or ""):
        return calls[-1]
    there = [call for call in calls if call.site and place_of(call.site) == place_of(activity.site)]
    newest = there[-1] if there else calls[-1]
    return next((call for call in reversed(there[-2:]) if _bytes(call) == came), newest)


def _bytes(call: Collective) -> int:
    """How many the first tensor has."""
    if not call.shapes or not call.dtypes:
        return 0
    bits = re.search(r"\d+$", call.dtypes[0])
    return prod(call.shapes[0]) * (int(bits[0]) // 8 if bits else 1)


def _told(
    evidence: Evidence, rank: Rank, model: int, collectives: tuple[Collective, ...]
) -> Evidence:
    """The evidence with what the rank would have told, which is in the groups of another one."""
    told = replace(rank, groups=evidence.ranks[model].groups, collectives=collectives)
    return replace(evidence, ranks={**evidence.ranks, rank.number: told})


def _by_somebody(rank: Rank, waits: Mapping[int, Wait], told: str) -> Finding:
    """Of an operation in which each pair of ranks has a size of its own: who sent is not told."""
    where = does(replace(rank, ended=None), activity_of(rank))
    finding = Finding(
        "mismatched-collective",
        "error",
        f"rank {rank.number} {where}, and another rank has sent more to it than it expects: which "
        "one nothing tells",
        innocent=innocents(waits, ()),
        evidence=(told,),
        cure="let the ranks exchange how much each sends to each (input and output splits) first",
    )
    return at(finding, activity_of(rank).site)


def _alone(evidence: Evidence, rank: Rank, waits: Mapping[int, Wait]) -> Finding:
    """Nobody else has told what it called."""
    ranks = (rank.number,)
    where = does(replace(rank, ended=None), activity_of(rank)) if rank.frames else "is"
    return Finding(
        "mismatched-collective",
        "error",
        f"{who(ranks, evidence)} {where} in a collective for which another rank has brought a "
        "larger tensor",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        innocent=innocents(waits, ranks),
        cure=CURES["mismatched-collective"],
    )
