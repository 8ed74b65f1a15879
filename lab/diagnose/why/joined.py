"""The verdict on a collective of one's own inside torch's `Join`, when some ranks have joined.

Those only repeat what the others' Joinables do (DDP's reducer, ZeRO's step): nobody meets a call
that the script makes itself. https://docs.pytorch.org/docs/stable/distributed.algorithms.join.html
"""

from collections.abc import Mapping
from dataclasses import replace

from lab.diagnose.finding import Finding
from lab.diagnose.why.evidence import Evidence
from lab.diagnose.why.sequences import Divergence
from lab.diagnose.why.telling import at
from lab.diagnose.why.waits import Wait, innocents
from lab.diagnose.why.wording import call_in_words, called_at, site_in_words, who
from lab.diagnose.words import ranks_in_words

JOIN = "Join.__exit__"
"""Through what those call that have joined, as `lab.rank.groups` tells it."""
CURE = (
    "make no collective of your own inside `with Join(...)`: only those of DDP and other Joinables "
    "are repeated by ranks that are out of data; or write a Joinable that repeats it"
)


def with_join(
    finding: Finding, evidence: Evidence, found: Divergence, waits: Mapping[int, Wait]
) -> Finding:
    """The finding, or where one side has joined, what of the other's has no partner."""
    sides = (found.ranks, found.called), (found.others, found.expected)
    for (side, call), (joined, theirs) in (sides, sides[::-1]):
        is_own = call.via is None or call.via == call.op.lstrip("_")
        if theirs.via != JOIN or not is_own:
            continue
        ranks = tuple(sorted(side))
        has, repeat = ("it has", "repeats") if len(joined) == 1 else ("they have", "repeat")
        told = replace(
            finding,
            kind="mismatched-collective",
            summary=f"{who(ranks, evidence)} called {call_in_words(call, evidence)}"
            f"{called_at(call)}, which has no partner on {ranks_in_words(joined)}: {has} joined"
            f"{site_in_words(theirs.site)}, and only {repeat} what DDP and other Joinables call",
            ranks=ranks,
            nodes=evidence.nodes_of(ranks),
            innocent=innocents(waits, ranks),
            cure=CURE,
        )
        return at(told, call.site)
    return finding
