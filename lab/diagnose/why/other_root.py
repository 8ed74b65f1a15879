"""The verdict on ranks that name another root than others for the same collective.

The flight recorder has no roots: they are known of those that wait, from the stack.
"""

from collections.abc import Mapping

from lab.diagnose.finding import Finding
from lab.diagnose.why.activity import activity_of
from lab.diagnose.why.evidence import Collective, Evidence, GroupKey, Rank
from lab.diagnose.why.telling import at
from lab.diagnose.why.waits import Wait, innocents
from lab.diagnose.why.wording import call_in_words, site_in_words, who
from lab.diagnose.words import NOBODY_KNOWS, ranks_in_words

SIZE = ("broadcast", ("int64",))
CURE = "give all ranks the same root (src, dst)"


def judge_other_root(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Name the ranks that wait for, or send to, another root; None where all have the same."""
    together: dict[tuple[GroupKey, int], dict[int, list[int]]] = {}  # by call and root
    for number, wait in sorted(waits.items()):
        root = _root(evidence, number, wait)
        if wait.call is not None and root is not None:
            for call in _of_this_function(evidence.ranks[number], wait.call):
                at_root = together.setdefault((call.group, call.seq), {})
                at_root.setdefault(root, []).append(number)
    differing = {call: roots for call, roots in together.items() if len(roots) > 1}
    if not differing:
        return None
    group, seq = max(differing, key=lambda call: sum(map(len, differing[call].values())))
    return _finding(evidence, waits, differing[group, seq], group, seq)


def _of_this_function(rank: Rank, call: Collective) -> tuple[Collective, ...]:
    """The call that a rank waits in, and those before it of the same function, with its root.

    broadcast_object_list and scatter_object_list begin by a broadcast of a size.
    """
    if not (call.via or "").endswith("object_list"):
        return (call,)
    calls = [call]
    while (calls[0].op, calls[0].dtypes) != SIZE:
        before = rank.called[call.group].get(calls[0].seq - 1)
        if before is None or (before.via, before.site) != (call.via, call.site):
            return (call,)
        calls.insert(0, before)
    return tuple(calls)


def _root(evidence: Evidence, number: int, wait: Wait) -> int | None:
    """Its global rank."""
    arguments = activity_of(evidence.ranks[number]).arguments
    for whole, inside in (("src", "group_src"), ("dst", "group_dst")):
        if isinstance(arguments.get(whole), int):
            return int(arguments[whole])
        place = arguments.get(inside)
        if isinstance(place, int) and wait.group is not None and place < len(wait.group[1]):
            return wait.group[1][place]
    return None


def _finding(
    evidence: Evidence,
    waits: Mapping[int, Wait],
    roots: Mapping[int, list[int]],
    group: GroupKey,
    seq: int,
) -> Finding:
    """The majority of those that wait is right, if there is one."""
    sides = sorted(roots.items(), key=lambda side: -len(side[1]))
    (root, right), (other, wrong) = sides[:2]
    call = evidence.ranks[wrong[0]].called[group][seq]
    told_by = {rank for _, side in sides for rank in side}
    gone_on = tuple(sorted({*group[1]} - told_by))
    is_known = len(right) > len(wrong) + len(gone_on)
    ranks = tuple(sorted(n for at_root, side in sides if at_root != root for n in side))
    if not is_known:
        ranks = tuple(sorted(n for _, side in sides for n in side))
    told = [f"{ranks_in_words(side)}: root {at_root}" for at_root, side in sides]
    if gone_on:
        told.append(f"{ranks_in_words(gone_on)}: not in it any more, with whatever root")
    elif not is_known:
        told.append(NOBODY_KNOWS)
    finding = Finding(
        "mismatched-collective",
        "error",
        f"{who(wrong, evidence)} called {call_in_words(call, evidence)} with root {other}"
        f"{site_in_words(waits[wrong[0]].site)}, where {who(right, evidence)} called it with "
        f"root {root}{site_in_words(waits[right[0]].site)}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        innocent=innocents(waits, ranks),
        evidence=tuple(told),
        cure=CURE,
    )
    return at(finding, waits[wrong[0]].site)
