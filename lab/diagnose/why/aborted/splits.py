"""Whose splits do not fit, where gloo has aborted a rank in an all-to-all.

There each pair of ranks has a size of its own. The aborted rank has told nothing, but the others
have: what each has sent to whom, and expected of whom.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lab.diagnose.finding import Finding
from lab.diagnose.why.aborted.abort import Abort
from lab.diagnose.why.evidence import Evidence, Exchange, GroupKey
from lab.diagnose.why.telling import at, does
from lab.diagnose.why.waits import Wait, innocents
from lab.diagnose.why.wording import site_in_words, who

CURE = "let the ranks exchange how much each sends to each (input and output splits) first"
MOST = 4
"""Pairs to tell of."""
Sides = Mapping[int, Exchange]
"""What the ranks have told of one call, by rank."""


@dataclass(frozen=True)
class Misfit:
    """What one rank has sent to another, and that expected instead; bytes."""

    sender: int
    receiver: int
    sent: int
    expected: int

    @property
    def ranks(self) -> frozenset[int]:
        """Both."""
        return frozenset((self.sender, self.receiver))

    def __str__(self) -> str:
        """`rank 2 sends 96 bytes to rank 1, which expects 64`."""
        return (
            f"rank {self.sender} sends {self.sent} bytes to rank {self.receiver}, which expects "
            f"{self.expected}"
        )


def judge_splits(evidence: Evidence, abort: Abort, waits: Mapping[int, Wait]) -> Finding:
    """Name the rank that all pairs have in common which do not fit, or the only pair."""
    misfits = _misfits(evidence, abort)
    common = frozenset.intersection(*(one.ranks for one in misfits)) if misfits else frozenset()
    if not common:
        return _by_somebody(abort)
    ranks = tuple(sorted(common))
    place = site_in_words(abort.activity.site, abort.activity.function)
    told = [str(one) for one in misfits]
    more = f"; and {len(told) - MOST} more" if len(told) > MOST else ""
    which = "those of the others" if len(ranks) == 1 else "each other"
    finding = Finding(
        "mismatched-collective",
        "error",
        f"the splits of {who(ranks, evidence)}{place} do not fit {which}: "
        f"{'; '.join(told[:MOST])}{more}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        innocent=innocents(waits, ranks),
        evidence=("nothing tells which of the two is right",) if len(ranks) > 1 else (),
        cure=CURE,
    )
    return at(finding, abort.activity.site)


def _misfits(evidence: Evidence, abort: Abort) -> list[Misfit]:
    """Of the call in which the rank was aborted; empty where that is not known."""
    candidates = []
    for group in evidence.groups:
        if abort.rank.number in group[1]:
            calls = _calls(evidence, group)
            # Nobody has come to the end of the one after it.
            for number in (one for one in calls if one >= max(calls) - 1):
                to_it = _to_it(group, calls[number], abort)
                if to_it:
                    candidates.append((to_it, _among(group, calls[number])))
    differing = [one for one in candidates if one[1]]
    chosen = differing if len(differing) == 1 else candidates
    return [*chosen[0][0], *chosen[0][1]] if len(chosen) == 1 else []


def _calls(evidence: Evidence, group: GroupKey) -> dict[int, dict[int, Exchange]]:
    """The all-to-alls of a group, by their number."""
    calls: dict[int, dict[int, Exchange]] = {}
    for number, rank in evidence.ranks.items():
        for one in rank.exchanges:
            fits = len(one.sent) == len(one.expected) == len(group[1])
            if one.group == group and number in group[1] and fits:
                calls.setdefault(one.number, {})[number] = one
    return calls


def _to_it(group: GroupKey, sides: Sides, abort: Abort) -> list[Misfit]:
    """Who has sent it what was too much."""
    number = abort.rank.number
    mine = group[1].index(number)
    return [
        Misfit(sender, number, abort.came, abort.room)
        for sender, one in sides.items()
        if sender != number and one.sent[mine] == abort.came
    ]


def _among(group: GroupKey, sides: Sides) -> list[Misfit]:
    """Of ranks that have both told."""
    place = {number: n for n, number in enumerate(group[1])}
    pairs = [
        Misfit(a, b, sides[a].sent[place[b]], sides[b].expected[place[a]])
        for a in sides
        for b in sides
        if a != b
    ]
    return [one for one in pairs if one.sent != one.expected]


def _by_somebody(abort: Abort) -> Finding:
    """Who sent is not told."""
    where = does(replace(abort.rank, ended=None), abort.activity)
    finding = Finding(
        "mismatched-collective",
        "error",
        f"rank {abort.rank.number} {where}, and another rank has sent more to it than it expects: "
        "which one nothing tells",
        cure=CURE,
    )
    return at(finding, abort.activity.site)
