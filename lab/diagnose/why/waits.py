"""For whom each rank waits, and since when."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from lab.diagnose.finding import Innocent
from lab.diagnose.why.activity import Activity, Doing, activity_of
from lab.diagnose.why.evidence import Collective, Evidence, Frame, GroupKey, Rank
from lab.diagnose.why.wording import call_in_words, group_in_words
from lab.diagnose.words import ranks_in_words
from lab.node.victims import consequence, lost_peer
from lab.rank.frames import is_installed

LEAVING = "destroy_process_group"
Place = tuple[str, int | None, str]
"""File, line and function."""


@dataclass(frozen=True)
class Wait:
    """One rank's waiting: in what, and for whom."""

    rank: int
    what: str
    """`all_reduce #17 [4,64] float32 of the default group`."""
    awaited: frozenset[int]
    """The ranks without which it cannot go on, and that have not come."""
    site: Frame | None
    since: float | None = None
    call: Collective | None = None
    """Where the flight recorder has it: gloo's has no point-to-point operations."""
    group: GroupKey | None = None
    tags: frozenset[int] = frozenset()
    """Of messages."""
    lane: tuple[GroupKey, int] | None = None
    """Group and tag of a message that may come from any rank: any one of the awaited would do."""
    for_lock: bool = False
    """Whether it waits for a file lock that the awaited hold."""
    is_posted: bool = False
    """Whether the message was begun before (isend, irecv), so that other calls could follow."""


def waits_of(evidence: Evidence) -> dict[int, Wait]:
    """Every rank that waits for others, by number."""
    found = ((number, _wait(evidence, rank)) for number, rank in evidence.ranks.items())
    return {number: wait for number, wait in found if wait is not None}


def has_gone(rank: Rank) -> bool:
    """Whether nobody meets it any more: it has ended, or left its process groups, or does so."""
    activity = activity_of(rank)
    is_at_end = activity.function == LEAVING or activity.doing is Doing.ENDING
    return rank.ended is not None or rank.has_left or is_at_end


def innocents(waits: Mapping[int, Wait], guilty: Collection[int]) -> tuple[Innocent, ...]:
    """Those who only wait: together, where they wait in the same call at the same line."""
    alike: dict[tuple[str, Place | None], list[Wait]] = {}
    for number, wait in sorted(waits.items()):
        if number not in guilty:
            alike.setdefault((wait.what, _place(wait.site)), []).append(wait)
    return tuple(
        Innocent(
            ranks=tuple(wait.rank for wait in together),
            what=f"wait{'s' * (len(together) == 1)} in {what}",
            file=place[0] if place else None,
            line=place[1] if place else None,
            function=place[2] if place else None,
            since=min((wait.since for wait in together if wait.since is not None), default=None),
        )
        for (what, place), together in alike.items()
    )


def _place(site: Frame | None) -> Place | None:
    """Without the code there, which is not read of every stack."""
    return None if site is None else (site.file, site.line, site.function)


def _wait(evidence: Evidence, rank: Rank) -> Wait | None:
    """None: it does not wait for other ranks, or is not there.

    Of a rank that has failed the stack is that of its exception: where it waited until its peer
    had gone.
    """
    if rank.is_stopped or rank.is_gone or not may_wait(rank):
        return None
    activity = activity_of(rank)
    if activity.doing is Doing.RENDEZVOUS:
        return Wait(rank.number, "init_process_group", _not_joining(evidence), activity.site)
    lost = _call_that_raised(rank)
    if lost is not None:
        return _in_collective(evidence, rank, lost, lost.site)
    if activity.doing is Doing.ELSE and not rank.is_busy and (held := _holders(evidence, rank)):
        what = f"the queue for a file lock of {ranks_in_words(held)}"
        return Wait(rank.number, what, held, activity.site, for_lock=True)
    call = _call_in_progress(rank, activity)
    if call is not None:
        return _in_collective(evidence, rank, call, activity.site or call.site)
    # Who is busy there computes; and nobody waits in order to leave.
    in_call = activity.doing is Doing.COMMUNICATION and activity.function != LEAVING
    if in_call and rank.groups and not rank.is_busy:
        return _in_call(evidence, rank, activity)
    if activity.doing is Doing.HANDLE and rank.groups:
        return _in_handle(evidence, rank, activity)
    return None


def _holders(evidence: Evidence, rank: Rank) -> frozenset[int]:
    """The ranks that hold the file lock that this one waits for."""
    return frozenset(
        number for number, other in evidence.ranks.items() if other.process_name in rank.lock_of
    )


def may_wait(rank: Rank) -> bool:
    """Whether it is alive, or ended as a rank does whose peer has gone."""
    if rank.exception is not None:
        return consequence(rank.exception.get("chain") or ()) > 0
    return True


def _call_that_raised(rank: Rank) -> Collective | None:
    """The collective in which a rank has lost its peer, where it has raised something else since.

    Its stack is that of the last exception then, and shows another line.
    """
    lost = lost_peer((rank.exception or {}).get("chain") or ())
    last = rank.collectives[-1] if rank.collectives else None
    if lost is None or last is None or last.site is None:
        return None
    place = lost.get("file"), lost.get("line")
    return last if place == (last.site.file, last.site.line) else None


def _call_in_progress(rank: Rank, activity: Activity) -> Collective | None:
    """The collective that a rank waits in. A stack alone does not tell: DDP's reducer is C++."""
    doing = activity.doing
    if doing not in (Doing.COMMUNICATION, Doing.BACKWARD, Doing.HANDLE, Doing.ELSE):
        return None
    pending = next((call for call in rank.collectives if not call.done), None)
    if pending is not None and "nccl" in rank.groups[pending.group]:
        return pending  # a process that waits for its GPU is busy, wherever it does
    if doing is Doing.BACKWARD and rank.is_busy and rank.exception is None:
        return None  # it computes
    if pending is not None:
        return pending if doing is not Doing.ELSE or _may_be_in_wait(rank, activity) else None
    last = rank.collectives[-1] if rank.collectives else None
    if last is None or doing is Doing.ELSE or activity.site is None or last.site is None:
        return None
    same = (last.site.file, last.site.line) == (activity.site.file, activity.site.line)
    return last if same else None  # what has raised counts as done


def _may_be_in_wait(rank: Rank, activity: Activity) -> bool:
    """Whether `work.wait()`, of which a stack has no frame, is called by what the stack shows."""
    if rank.is_busy or activity.site is None:
        return False
    if activity.function is None:
        return activity.site.code is None  # a line that nobody has read
    innermost = rank.frames[0].file
    return is_installed(innermost) or "/lab/parallel/" in innermost


def _not_joining(evidence: Evidence) -> frozenset[int]:
    return frozenset(
        number
        for number, rank in evidence.ranks.items()
        if not rank.may_have_joined
        and activity_of(rank).doing is not Doing.RENDEZVOUS
        and (rank.is_in_script or evidence.failure is None)
    )


def _in_collective(evidence: Evidence, rank: Rank, call: Collective, site: Frame | None) -> Wait:
    absent = {
        member
        for member in call.group[1]
        if member != rank.number and not _has_called(evidence, member, call)
    }
    return Wait(
        rank.number,
        call_in_words(call, evidence),
        frozenset(absent),
        site,
        call.time,
        call,
        call.group,
    )


def _has_called(evidence: Evidence, member: int, call: Collective) -> bool:
    rank = evidence.ranks.get(member)
    return rank is not None and max(rank.called.get(call.group, ()), default=0) >= call.seq


def _in_call(evidence: Evidence, rank: Rank, activity: Activity) -> Wait:
    """A call that the flight recorder does not know: the members that are not in it are awaited."""
    arguments = activity.arguments
    group = _group_named(rank, arguments.get("group"))
    members = group[1] if group is not None else tuple(evidence.ranks)
    function = activity.function or "a call"
    what = f"{function} of {group_in_words(group, evidence)}"
    peer = _peer(activity, group)
    if peer is not None:
        way = "from" if "recv" in function else "to"
        counterpart = "send" if way == "from" else "recv"
        tag = arguments.get("tag") or 0
        what = f"{function} {way} rank {peer}{_tagged({tag})}"
        there = activity_of(evidence.ranks[peer]) if peer in evidence.ranks else None
        met = there is not None and counterpart in (there.function or "")
        met = met and there is not None and _peer(there, group) == rank.number
        met = met and there is not None and (there.arguments.get("tag") or 0) == tag
        awaited = frozenset() if met else frozenset({peer})
        return Wait(rank.number, what, awaited, activity.site, tags=frozenset({tag}))
    if "recv" in function and group is not None:
        tag = arguments.get("tag") or 0
        return _from_anybody(evidence, rank, activity, (group, tag), "recv")
    absent = frozenset(
        member
        for member in members
        if member != rank.number
        and (
            member not in evidence.ranks
            or activity_of(evidence.ranks[member]).function != activity.function
        )
    )
    return Wait(rank.number, what, absent, activity.site, group=group)


def _in_handle(evidence: Evidence, rank: Rank, activity: Activity) -> Wait:
    """`work.wait()` of no collective: of a message that nobody has sent, or that nobody takes."""
    for way, kind, preposition in ((1, "irecv", "from"), (0, "isend", "to")):
        missing = [
            (peer, tag)
            for (group, peer, tag), counts in rank.messages.items()
            if peer is not None
            and (known := _sent_and_received(evidence, peer, rank.number, group, tag)) is not None
            and counts[way] > known[1 - way]
        ]
        if missing:
            peers, tags = (
                frozenset(peer for peer, _ in missing),
                frozenset(tag for _, tag in missing),
            )
            what = f"{kind} {preposition} {ranks_in_words(sorted(peers))}{_tagged(tags)}"
            return Wait(rank.number, what, peers, activity.site, tags=tags, is_posted=True)
    for (group, peer, tag), counts in rank.messages.items():
        if peer is None and counts[1] > _came(evidence, rank, (group, tag)):
            wait = _from_anybody(evidence, rank, activity, (group, tag), "irecv")
            return replace(wait, is_posted=True)
    return Wait(rank.number, "an operation that it has begun", frozenset(), activity.site)


def _from_anybody(
    evidence: Evidence, rank: Rank, activity: Activity, lane: tuple[GroupKey, int], function: str
) -> Wait:
    """It waits for all who may still send; for nobody where one of them is about to."""
    (_, members), tag = lane
    awaited = frozenset(members) - {rank.number}
    if rank.messages.get((lane[0], None, tag), (0, 0))[1] <= _came(evidence, rank, lane):
        awaited = frozenset()
    what = f"{function} from any rank{_tagged({tag})}"
    return Wait(rank.number, what, awaited, activity.site, tags=frozenset({tag}), lane=lane)


def _came(evidence: Evidence, rank: Rank, lane: tuple[GroupKey, int]) -> float:
    """How many messages others have begun to send it that it has not asked for by their names.

    Infinite, where one of them has not told. What one that has ended has sent would have come.
    """
    (group, tag), came = lane, 0.0
    for peer in group[1]:
        if peer != rank.number and (peer not in evidence.ranks or not evidence.ranks[peer].ended):
            known = _sent_and_received(evidence, peer, rank.number, group, tag)
            named = rank.messages.get((group, peer, tag), (0, 0))[1]
            came += float("inf") if known is None else max(0.0, known[0] - named)
    return came


def _tagged(tags: Collection[int]) -> str:
    """` (tag 1)`; nothing for the usual one."""
    named = ", ".join(map(str, sorted(tags)))
    return "" if named == "0" else f" (tag{'s' * (len(tags) > 1)} {named})"


def _sent_and_received(
    evidence: Evidence, peer: int, rank: int, group: GroupKey, tag: int
) -> tuple[float, float] | None:
    """How many messages the peer has begun to send to a rank and to receive from it."""
    other = evidence.ranks.get(peer)
    if other is None or other.source != "probe" or other.ended is not None:
        return None  # nobody knows
    sent, received = other.messages.get((group, rank, tag), (0, 0))
    takes_any = any(one == group and source is None for one, source, _ in other.messages)
    return sent, float("inf") if takes_any else received


def _peer(activity: Activity, group: GroupKey | None) -> int | None:
    """The global rank that a point-to-point call is about."""
    function, arguments = activity.function or "", activity.arguments
    if "recv" not in function and "send" not in function:
        return None
    whole, inside = ("src", "group_src") if "recv" in function else ("dst", "group_dst")
    if isinstance(arguments.get(whole), int):
        return int(arguments[whole])
    position = arguments.get(inside)
    if isinstance(position, int) and group is not None and position < len(group[1]):
        return group[1][position]
    return None


def _group_named(rank: Rank, name: object) -> GroupKey | None:
    return next((group for group in rank.groups if group[0] == name), None)
