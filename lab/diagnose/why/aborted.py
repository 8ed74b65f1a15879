"""The verdict on a rank that gloo has aborted: another one sent it more than it has room for."""

import re
from collections.abc import Mapping

from lab.diagnose.finding import Finding, WhyKind
from lab.diagnose.why.activity import Activity, activity_of
from lab.diagnose.why.differing import cure_of
from lab.diagnose.why.evidence import Collective, Evidence, Json, Rank
from lab.diagnose.why.sequences import distance, place_of
from lab.diagnose.why.telling import at
from lab.diagnose.why.waits import Wait, innocents
from lab.diagnose.why.wording import call_in_words, called_at, site_in_words, who
from lab.diagnose.words import ranks_in_words

SIZES = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
"""What gloo says when more bytes come than the tensor of this rank has, before it aborts."""


def judge_aborted(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Gloo's abort of a rank whose tensor is too small for what the others send.

    It leaves no list of its collectives: where it was is compared with what the others called.
    """
    failure = evidence.failure
    found = SIZES.search(_said(failure)) if failure is not None else None
    if failure is None or found is None:
        return None
    rank = evidence.ranks[failure["rank"]]
    last = {
        n: one.collectives[-1]
        for n, one in evidence.ranks.items()
        if one.collectives and one is not rank
    }
    alike = len(
        {(call.group, call.seq, call.op, call.shapes, call.dtypes) for call in last.values()}
    )
    ranks = (rank.number,) if len(last) > 1 and alike == 1 else tuple(sorted([rank.number, *last]))
    other = next(iter(last), None)
    call = None if other is None else last[other]
    activity = activity_of(rank)
    there = f"in {activity.function or 'a collective'}{site_in_words(activity.site)}"
    end = f"was sent {found[1]} bytes where its own tensor has room for {found[2]}: gloo ended it"
    kind: WhyKind = "mismatched-collective"
    if call is None or other is None:
        summary = f"{who((rank.number,), evidence)} {there} {end}"
    else:
        called = f"{call_in_words(call, evidence)}, which {ranks_in_words(tuple(last))} called"
        called += called_at(call)
        if len(ranks) == 1 and _came_later(evidence.ranks[other], call, activity):
            kind = "skipped-collective"
            summary = f"{who(ranks, evidence)} skipped {called}; {there} it {end}"
        else:
            summary = f"{who((rank.number,), evidence)} {there} did not meet {called}: it {end}"
    finding = Finding(
        kind,
        "error",
        summary,
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        innocent=innocents(waits, ranks),
        evidence=(
            f"gloo on rank {rank.number}: {found[0]}",
            *(
                f"rank {n} called {call_in_words(c, evidence)}{called_at(c)}"
                for n, c in last.items()
            ),
        ),
        cure=cure_of(kind, call.via if call else None),
    )
    return at(finding, activity.site or (call.site if call else None))


def _came_later(other: Rank, call: Collective, activity: Activity) -> bool:
    """Whether in the round before the others came from this call to where the rank is now."""
    place = place_of(activity.site)
    calls = other.called[call.group]
    return place is not None and distance(calls, call.seq, lambda c: place_of(c.site) == place) > 0


def _tensors(call: Collective) -> tuple[object, ...]:
    return call.group, call.seq, call.op, call.shapes, call.dtypes


def _said(failure: Json) -> str:
    return "\n".join([failure.get("message") or "", *(failure.get("last_lines") or ())])
