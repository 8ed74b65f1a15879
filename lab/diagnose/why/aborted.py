"""The verdict on a rank that gloo has aborted: another one sent it more than it has room for.

It is not always the guilty one, and it leaves no list of its collectives; but the stack that it
left says which call it was in. That call is compared with what the others called.
"""

import re
from collections.abc import Mapping
from dataclasses import replace

from lab.diagnose.finding import Finding
from lab.diagnose.why.activity import activity_of
from lab.diagnose.why.differing import CURES, judge_differing
from lab.diagnose.why.evidence import Collective, Evidence, Rank
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
    found = judge_differing(_with_last_call(evidence, rank), waits)
    if found is None:
        found = at(_alone(evidence, rank, waits), activity_of(rank).site)
    told = f"gloo ended rank {rank.number}: {sizes[1]} bytes came, and it had room for {sizes[2]}"
    return replace(found, evidence=(*found.evidence, told))


def _with_last_call(evidence: Evidence, rank: Rank) -> Evidence:
    """The evidence as if the rank had told: up to its last call its list is the others'."""
    others = [one for one in evidence.ranks.values() if one.collectives and one is not rank]
    if not others:
        return evidence
    model = max(others, key=lambda one: one.collectives[-1].seq)
    met = model.collectives[-1]
    activity = activity_of(rank)
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
    told = replace(rank, groups=model.groups, collectives=(*before, last))
    return replace(evidence, ranks={**evidence.ranks, rank.number: told})


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
