"""The verdict on ranks that call what no other one ever has, when those are at their end."""

from collections.abc import Mapping

from lab.diagnose.finding import Finding
from lab.diagnose.why.differing import cure_of
from lab.diagnose.why.evidence import Evidence, Rank
from lab.diagnose.why.late import CURES
from lab.diagnose.why.sequences import place_of
from lab.diagnose.why.telling import at
from lab.diagnose.why.waits import Wait, has_gone, innocents
from lab.diagnose.why.wording import (
    call_in_words,
    called_at,
    group_in_words,
    short_in_words,
    who,
)
from lab.diagnose.words import ranks_in_words


def judge_beyond(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Name the ranks whose calls from a line of their own have become too many.

    Such calls go with others' as long as the numbers and tensors do (an evaluation by rank 0
    alone); when the others are at their end there is one left over. Where it may as well be that
    those have left the call out, and so ended early, it is for `judge_late` to say.
    """
    for wait in waits.values():
        found = _beyond(evidence, waits, wait)
        if found is not None:
            return found
    return None


def _beyond(evidence: Evidence, waits: Mapping[int, Wait], wait: Wait) -> Finding | None:
    call = wait.call
    if call is None:
        return None
    ranks = tuple(n for n, one in sorted(waits.items()) if one.what == wait.what)
    others = [evidence.ranks[n] for n in call.group[1] if n not in ranks and n in evidence.ranks]
    lists = [one.called.get(call.group, {}) for one in others if _is_over(one)]
    if not others or len(lists) < len(others) or not all(lists):
        return None
    end = max(max(called) for called in lists)
    theirs = {place_of(one.site) for called in lists for one in called.values()}
    mine = evidence.ranks[wait.rank].called[call.group]
    over = {place_of(one.site) for seq, one in mine.items() if seq > end}
    is_even = {max(called) for called in lists} == {call.seq - 1}
    if over & theirs and is_even and len(ranks) < len(others):
        return _once_more(evidence, wait, ranks, end)
    if not over or None in over or over & theirs:
        return None
    earlier = [seq for seq, one in mine.items() if seq <= end and place_of(one.site) in over]
    if not earlier and len(ranks) >= len(others):
        return None
    numbers = ranks_in_words([one.number for one in others])
    told = [f"{numbers} ended after #{end}, and called nothing from this line"]
    if earlier and (met := lists[0].get(earlier[0])) is not None:
        one = mine[earlier[0]]
        told.append(
            f"an earlier one, #{one.seq}{called_at(one)}, went with {short_in_words(met)}"
            f"{called_at(met)} of the other ranks"
        )
    finding = Finding(
        "extra-collective",
        "error",
        f"{who(ranks, evidence)} called {call_in_words(call, evidence)}{called_at(call)}, which "
        f"{numbers} did not: {'it has' if len(others) == 1 else 'they have'} ended",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        innocent=innocents(waits, ranks),
        evidence=tuple(told),
        cure=cure_of("extra-collective", call.via),
    )
    return at(finding, wait.site)


def _once_more(evidence: Evidence, wait: Wait, ranks: tuple[int, ...], end: int) -> Finding:
    """Most are over after as many calls: then it is the few who go on that are not as the others.

    It is a line that all have called: a loop with a round more.
    """
    call = wait.call
    assert call is not None
    numbers = ranks_in_words([n for n in call.group[1] if n not in ranks])
    finding = Finding(
        "extra-collective",
        "error",
        f"{who(ranks, evidence)} called {call_in_words(call, evidence)}{called_at(call)} once more "
        f"than {numbers}, which are over after {end} calls",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        evidence=(
            f"{numbers} have called this line, too, and all {end} collectives of "
            f"{group_in_words(call.group, evidence)}: they have ended, or left it",
        ),
        cure=CURES["ended-early"],
    )
    return at(finding, wait.site)


def _is_over(rank: Rank) -> bool:
    return has_gone(rank) and not (rank.ended or {}).get("code")
