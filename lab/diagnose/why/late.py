"""The verdict on ranks that others wait for while they wait for nobody: what they do instead."""

from collections.abc import Mapping, Sequence

from lab.diagnose.finding import Finding, WhyKind
from lab.diagnose.why.activity import Doing, activity_of
from lab.diagnose.why.chains import roots
from lab.diagnose.why.evidence import Evidence, Rank
from lab.diagnose.why.progress import JUST_NOW
from lab.diagnose.why.sequences import place_of
from lab.diagnose.why.telling import at, does, seen
from lab.diagnose.why.unused import UNUSED_CURE, unused_by
from lab.diagnose.why.waits import Wait, has_gone, innocents, may_wait
from lab.diagnose.why.wording import site_in_words, who
from lab.diagnose.words import ranks_in_words
from lab.node.victims import timed_out

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
KEY_CURE = (
    "see which rank sets this key, under this very name, and whether it comes to that: one that "
    "waits in a collective meanwhile does not"
)
"""Where a rank waits for a key of a store."""
ENDLESS_CURE = "see whether this ever ends (a loop may not); if it does, "
"""Before the usual one, where a rank computes in a line of its own."""
TIME_OUT_CURE = (
    "; if it only takes its time, the time-out of the process group, which has ended this, is too "
    "short for it (init_process_group and new_group take timeout)"
)

OWN = (Doing.ELSE, Doing.STORE)
"""What goes on in lines of a script that are no collective."""
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
    # Anybody may have to set a key.
    no_innocents = kind == "busy-alone" and activity.doing is Doing.STORE
    are_most = kind == "busy-alone" and _are_most(evidence, ranks, waits)
    if are_most and not first.is_busy:
        return _who_waits_for_whom(evidence, ranks, waits)
    never = ""
    if kind == "ended-early" and first.has_left and wait.call is not None:
        never = f", which {'it has' if len(ranks) == 1 else 'they have'} not called"
    finding = Finding(
        kind,
        "error",
        f"{who(ranks, evidence)} {_behind(ranks, first, wait)}{what}; "
        f"{_waiting(waits, wait)} for {'it' if len(ranks) == 1 else 'them'} in {wait.what}"
        f"{site_in_words(wait.site)}{never}{without}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        innocent=() if are_most or no_innocents else innocents(waits, ranks),
        evidence=tuple(seen(evidence.ranks[number]) for number in reasons),
        cure=_cure(evidence, kind, first),
    )
    # The line that a rank which has ended did not come to is where the others wait for it.
    is_over = first.ended is not None or first.has_left or activity.doing is Doing.ENDING
    return at(finding, wait.site if is_over else activity.site)


def _what(late: Sequence[Rank]) -> str:
    """What they do, in words: of several, the first."""
    first, several = late[0], len(late) > 1
    if not has_gone(first):
        does_it = does(first, activity_of(first), idle="waits")
        return f"are late: rank {first.number} {does_it}" if several else does_it
    if all(one.ended is None and one.has_left for one in late):
        now = "" if several else f", and {does(first, activity_of(first))}"
        left = "have left their" if several else "has left its"
        return f"{left} process groups{now}"
    return "have ended" if several else does(first, activity_of(first))


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
        if rank.exception is not None and may_wait(rank):
            return "unknown"  # it has lost a peer, for whichever it waited
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


def _cure(evidence: Evidence, kind: WhyKind, rank: Rank) -> str | None:
    if kind == "ended-early" and rank.ended is None and rank.has_left:
        return f"{LEFT_CURE}; {CURES[kind]}"
    if kind not in ("busy-alone", "data-loader"):
        return CURES.get(kind)
    is_own = kind == "busy-alone" and activity_of(rank).doing is Doing.ELSE
    raised = [one.exception["chain"] for one in evidence.ranks.values() if one.exception]
    has_timed_out = evidence.because == "failure" and any(timed_out(chain) for chain in raised)
    if activity_of(rank).doing is Doing.STORE:
        return KEY_CURE
    cure = BLOCKED_CURE if is_own and rank.is_idle else ENDLESS_CURE * is_own + CURES[kind]
    return cure + TIME_OUT_CURE * has_timed_out


def _are_most(evidence: Evidence, ranks: Sequence[int], waits: Mapping[int, Wait]) -> bool:
    """Whether most ranks are at one line outside of collectives, and fewer wait for them.

    Those who have left their groups wait for nobody.
    """
    if any(evidence.ranks[number].has_left for number in ranks):
        return False
    activities = [activity_of(evidence.ranks[number]) for number in ranks]
    places = {place_of(one.site) for one in activities}
    outside = all(one.doing in OWN for one in activities)
    return len(ranks) > len(waits) and outside and len(places) == 1 and None not in places


def _who_waits_for_whom(
    evidence: Evidence, ranks: tuple[int, ...], waits: Mapping[int, Wait]
) -> Finding:
    """They may wait for something that those have left out who are past it, or be late: both."""
    wait, first = _wait_for(waits, ranks), evidence.ranks[ranks[0]]
    activity = activity_of(first)
    past = tuple(sorted(n for n, one in waits.items() if not one.awaited.isdisjoint(ranks)))
    one = len(past) == 1
    finding = Finding(
        "unknown",
        "warning",
        f"{who(past, evidence)} {'is' if one else 'are'} past where {ranks_in_words(ranks)} are "
        f"(rank {ranks[0]} {does(first, activity, idle='waits')}), and wait{'s' * one} for them in "
        f"{wait.what}{site_in_words(wait.site)}: either {'it' if one else 'they'} left out what "
        "the others wait for there, or the others are late",
        evidence=tuple(seen(evidence.ranks[number]) for number in (*ranks, *past)),
        cure=_cure(evidence, "busy-alone", first),
    )
    return at(finding, activity.site)


def _waiting(waits: Mapping[int, Wait], wait: Wait) -> str:
    waiting = [one.rank for one in waits.values() if one.what == wait.what]
    return f"{ranks_in_words(waiting)} wait{'s' * (len(waiting) == 1)}"


def _behind(ranks: Sequence[int], rank: Rank, wait: Wait) -> str:
    """`is 1 collective behind: it `, or `is late: it ` where it cannot be counted."""
    if len(ranks) > 1 or rank.ended is not None:
        return ""
    count = 0
    if wait.call is not None and rank.groups:
        count = wait.call.seq - max(rank.called.get(wait.call.group, ()), default=0)
    if count > 0:
        return f"is {count} collective{'s' * (count > 1)} behind: it "
    return "is late: it " if activity_of(rank).doing in OWN else ""
