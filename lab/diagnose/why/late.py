"""The verdict on ranks that others wait for while they wait for nobody: what they do instead."""

from collections.abc import Mapping, Sequence

from lab.diagnose.finding import Finding, WhyKind
from lab.diagnose.why.activity import Doing, activity_of
from lab.diagnose.why.evidence import Evidence, Rank
from lab.diagnose.why.progress import JUST_NOW
from lab.diagnose.why.telling import at, does, seen
from lab.diagnose.why.unused import UNUSED_CURE, unused_by
from lab.diagnose.why.waits import Wait, has_gone, innocents, roots
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

LEFT_CURE = "let every rank make this call before it destroys its process groups"
BLOCKED_CURE = (
    "see what this line waits for (a lock, a queue, a process, a connection, a pause), and whether "
    "it ever comes; let the others not wait in a collective meanwhile"
)
"""Where a rank computes nothing while the others wait for it."""

MAY_WAIT = (Doing.COMMUNICATION, Doing.BACKWARD, Doing.HANDLE)
"""Where a rank may wait like the others: a stack read from outside does not tell in which call."""


def judge_late(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Name the ranks at the end of every chain of waiting; None where there is no such rank."""
    reasons = {number: _reason(evidence, evidence.ranks[number], waits) for number in roots(waits)}
    if not reasons:
        return None
    kind: WhyKind = next((one for one in ORDER if one in reasons.values()), "unknown")
    if kind == "unknown" and evidence.failure is not None:
        return None
    ranks = tuple(number for number, reason in reasons.items() if reason == kind)
    first = evidence.ranks[ranks[0]]
    activity = activity_of(first)
    wait = _wait_for(waits, ranks)
    what = _what([evidence.ranks[number] for number in ranks])
    names = unused_by(first, evidence) if kind == "unused-parameter" else ()
    without = f"; no gradient: {', '.join(names)}" if names else ""
    never = ""
    if kind == "ended-early" and first.has_left and wait.call is not None:
        never = f", which {'it has' if len(ranks) == 1 else 'they have'} not called"
    is_blocked = kind == "busy-alone" and activity.doing is Doing.ELSE and first.is_idle
    finding = Finding(
        kind,
        "error",
        f"{who(ranks, evidence)} {_behind(ranks, first, wait)}{what}; "
        f"{_waiting(waits, wait)} for {'it' if len(ranks) == 1 else 'them'} in {wait.what}"
        f"{site_in_words(wait.site)}{never}{without}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        innocent=innocents(waits, ranks),
        evidence=tuple(seen(evidence.ranks[number]) for number in reasons),
        cure=BLOCKED_CURE if is_blocked else _cure(kind, first),
    )
    # The line that a rank which has ended did not come to is where the others wait for it.
    is_over = first.ended is not None or first.has_left or activity.doing is Doing.ENDING
    return at(finding, wait.site if is_over else activity.site)


def _what(late: Sequence[Rank]) -> str:
    """What they do, in words: of several, the first."""
    first, several = late[0], len(late) > 1
    if not has_gone(first):
        does_it = does(first, activity_of(first))
        return f"are late: rank {first.number} {does_it}" if several else does_it
    if all(one.ended is None and one.has_left for one in late):
        now = "" if several else f", and {does(first, activity_of(first))}"
        left = "have left their" if several else "has left its"
        return f"{left} process groups{now}"
    return "have ended" if several else does(first, activity_of(first))


def _cure(kind: WhyKind, first: Rank) -> str | None:
    if kind == "ended-early" and first.ended is None and first.has_left:
        return f"{LEFT_CURE}; {CURES[kind]}"
    return CURES.get(kind)


def judge_loading(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Name all ranks where each waits for its own data loader, and has done so for a while."""
    ranks = tuple(evidence.ranks)
    stalls = evidence.because == "stall" or (evidence.stalled_s or 0.0) > JUST_NOW
    activities = [activity_of(rank) for rank in evidence.ranks.values()]
    if waits or not stalls or any(one.doing is not Doing.DATA for one in activities):
        return None
    finding = Finding(
        "data-loader",
        "error",
        f"no rank waits for another: each {does(evidence.ranks[ranks[0]], activities[0])}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        evidence=tuple(seen(rank) for rank in evidence.ranks.values()),
        cure=CURES["data-loader"],
    )
    return at(finding, activities[0].site)


def _reason(evidence: Evidence, rank: Rank, waits: Mapping[int, Wait]) -> WhyKind:
    if rank.ended is not None:
        return "failed" if rank.ended["code"] else "ended-early"
    if has_gone(rank):
        return "ended-early"
    doing = activity_of(rank).doing
    wait = _wait_for(waits, (rank.number,))
    if wait.call is not None and wait.call.via == "backward" and unused_by(rank, evidence):
        return "unused-parameter"
    if not rank.groups and doing in MAY_WAIT:
        return "unknown"
    if doing is Doing.DATA:
        return "data-loader"
    return "busy-alone" if rank.is_in_script else "unknown"


def _wait_for(waits: Mapping[int, Wait], ranks: Sequence[int]) -> Wait:
    """The longest wait for one of them."""
    chosen = [wait for wait in waits.values() if not wait.awaited.isdisjoint(ranks)]
    return min(chosen, key=lambda wait: (wait.since is None, wait.since or 0.0, wait.rank))


def _waiting(waits: Mapping[int, Wait], wait: Wait) -> str:
    waiting = [one.rank for one in waits.values() if one.what == wait.what]
    return f"{ranks_in_words(waiting)} wait{'s' * (len(waiting) == 1)}"


def _behind(ranks: Sequence[int], rank: Rank, wait: Wait) -> str:
    """`is 1 collective behind: it `; nothing where it cannot be counted."""
    if len(ranks) > 1 or wait.call is None or rank.ended is not None or not rank.groups:
        return ""
    count = wait.call.seq - max(rank.called.get(wait.call.group, ()), default=0)
    return f"is {count} collective{'s' * (count > 1)} behind: it " if count > 0 else ""
