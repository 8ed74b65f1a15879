"""The verdict on ranks that others wait for while they wait for nobody: what they do instead."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lab.diagnose.finding import Finding, WhyKind
from lab.diagnose.why.activity import Activity, Doing, activity_of
from lab.diagnose.why.evidence import Evidence, Rank
from lab.diagnose.why.unused import UNUSED_CURE, unused_by
from lab.diagnose.why.waits import Wait, innocents, roots
from lab.diagnose.why.wording import site_in_words, who
from lab.diagnose.words import ranks_in_words

ORDER: Sequence[WhyKind] = (
    "failed",
    "unused-parameter",
    "ended-early",
    "data-loader",
    "busy-alone",
)
"""Which to name where several ranks are late for several reasons; after them, `unknown`."""
CURES: Mapping[str, str] = {
    "unused-parameter": UNUSED_CURE,
    "ended-early": "give all ranks the same number of steps: DistributedSampler, drop_last=True, "
    "a decision to stop that all ranks share, or DDP's join()",
    "data-loader": "look at what this rank reads: a slow or locked file, a worker that is stuck",
    "busy-alone": "let the others not wait in a collective meanwhile, or let all share the work; "
    "a longer time-out of the process group only hides it",
}


def judge_late(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Name the ranks at the end of every chain of waiting; None where there is no such rank."""
    reasons = {number: _reason(evidence, evidence.ranks[number], waits) for number in roots(waits)}
    if not reasons:
        return None
    kind: WhyKind = next((one for one in ORDER if one in reasons.values()), "unknown")
    ranks = tuple(number for number, reason in reasons.items() if reason == kind)
    first = evidence.ranks[ranks[0]]
    activity = activity_of(first)
    wait = _wait_for(waits, ranks)
    names = unused_by(first, evidence) if kind == "unused-parameter" else ()
    without = f"; no gradient: {', '.join(names)}" if names else ""
    finding = Finding(
        kind,
        "error",
        f"{who(ranks, evidence)} {_behind(first, wait)}{_does(first, activity, len(ranks) > 1)}; "
        f"{_waiting(waits, wait)} for {'it' if len(ranks) == 1 else 'them'} in {wait.what}"
        f"{site_in_words(wait.site)}{without}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        innocent=innocents(waits, ranks),
        evidence=tuple(_seen(evidence.ranks[number]) for number in reasons),
        cure=CURES.get(kind),
    )
    site = activity.site
    if site is None:
        return finding
    return replace(finding, file=site.file, line=site.line, function=site.function)


def _reason(evidence: Evidence, rank: Rank, waits: Mapping[int, Wait]) -> WhyKind:
    if rank.ended is not None:
        return "failed" if rank.ended["code"] else "ended-early"
    doing = activity_of(rank).doing
    wait = _wait_for(waits, (rank.number,))
    if wait.call is not None and wait.call.via == "backward" and unused_by(rank, evidence):
        return "unused-parameter"
    if doing is Doing.DATA:
        return "data-loader"
    return "unknown" if doing is Doing.UNKNOWN else "busy-alone"


def _wait_for(waits: Mapping[int, Wait], ranks: Sequence[int]) -> Wait:
    """The longest wait for one of them."""
    chosen = [wait for wait in waits.values() if not wait.awaited.isdisjoint(ranks)]
    return min(chosen, key=lambda wait: (wait.since is None, wait.since or 0.0, wait.rank))


def _waiting(waits: Mapping[int, Wait], wait: Wait) -> str:
    waiting = [one.rank for one in waits.values() if one.what == wait.what]
    return f"{ranks_in_words(waiting)} wait{'s' * (len(waiting) == 1)}"


def _behind(rank: Rank, wait: Wait) -> str:
    """`is 1 collective behind: it `; nothing where it cannot be counted."""
    if wait.call is None or rank.ended is not None or not rank.groups:
        return ""
    count = wait.call.seq - max(rank.called.get(wait.call.group, ()), default=0)
    return f"is {count} collective{'s' * (count > 1)} behind: it " if count > 0 else ""


def _does(rank: Rank, activity: Activity, several: bool) -> str:
    """What the rank is doing: of several, it is the first that is told of."""
    if rank.ended is not None:
        return f"{'have' if several else 'has'} ended (exit code {rank.ended['code']})"
    first = f"are late, rank {rank.number} " if several else ""
    place = site_in_words(activity.site, activity.function)
    code = f": `{activity.site.code}`" if activity.site and activity.site.code else ""
    if activity.doing is Doing.UNKNOWN:
        return f"{first}shows no stack ({rank.error or 'no answer'}; state {rank.process_state})"
    if activity.doing is Doing.ELSE:
        use = "" if rank.cpu_share is None else ", using no processor time"
        return f"{first}is{place or ' in its own code'}{code}{', busy' if rank.is_busy else use}"
    return f"{first}{activity.doing.value}{place}{code}"


def _seen(rank: Rank) -> str:
    activity = activity_of(rank)
    share = "" if rank.cpu_share is None else f", {rank.cpu_share:.0%} of a core"
    state = "" if rank.process_state is None else f" (state {rank.process_state}{share})"
    return f"rank {rank.number} {_does(rank, activity, several=False)}{state}"
