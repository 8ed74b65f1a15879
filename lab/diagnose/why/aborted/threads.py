"""The verdict on an aborted rank of which several threads were in collectives of one group."""

from dataclasses import replace

from lab.diagnose.finding import Finding
from lab.diagnose.why.aborted.abort import MESSAGES, Abort
from lab.diagnose.why.activity import Activity, Doing, activity_of
from lab.diagnose.why.evidence import Evidence, Frame
from lab.diagnose.why.sequences import place_of
from lab.diagnose.why.telling import at
from lab.diagnose.why.wording import site_in_words, who


def judge_threads(evidence: Evidence, abort: Abort) -> Finding | None:
    """Two of its threads were in collectives, which gloo tells apart by their order alone.

    Nobody is innocent: the other ranks run the same script, and may have such threads as well.
    """
    doing = [activity_of(replace(abort.rank, frames=stack)) for stack in abort.rank.stacks]
    calls = {place_of(one.site): one for one in doing if _calls_a_collective(one)}
    if len(calls) < 2 or not _share_a_group(evidence, [one.site for one in calls.values()]):
        return None
    told = [site_in_words(one.site, one.function).strip() for one in calls.values()]
    ranks = (abort.rank.number,)
    finding = Finding(
        "mismatched-collective",
        "error",
        f"{who(ranks, evidence)} is in collectives in {len(told)} threads at the same time: "
        f"{' and '.join(told)}; in one group, which calls of the ranks meet is left to chance",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        cure="give each thread a group of its own (new_group), or make all calls from one thread",
    )
    return at(finding, [*calls.values()][-1].site)


def _calls_a_collective(activity: Activity) -> bool:
    communicates = activity.doing is Doing.COMMUNICATION and activity.site is not None
    return communicates and activity.function not in MESSAGES


def _share_a_group(evidence: Evidence, sites: list[Frame | None]) -> bool:
    """Whether these lines call in one group: there is no other, or the other ranks have done so."""
    if len(evidence.groups) == 1:
        return True
    calls = [call for rank in evidence.ranks.values() for call in rank.collectives]
    groups = [
        {call.group for call in calls if place_of(call.site) == place_of(site)} for site in sites
    ]
    return bool(set.intersection(*groups))
