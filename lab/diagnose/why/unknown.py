"""The verdict where nothing tells who is guilty: what was seen, rank by rank."""

from collections.abc import Mapping

from lab.diagnose.finding import Finding
from lab.diagnose.why.evidence import Evidence
from lab.diagnose.why.telling import seen
from lab.diagnose.why.waits import Wait, innocents
from lab.diagnose.why.wording import site_in_words
from lab.diagnose.words import ranks_in_words

MOST = 16
"""Ranks to tell of one by one."""


def unknown(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding:
    """Name nobody, and say what was seen."""
    together = [n for n, wait in waits.items() if not wait.awaited]
    calls = {waits[n].what if waits[n].group is not None else None for n in together}
    if len(together) == len(evidence.ranks) and len(calls) == 1 and None not in calls:
        what = (
            f"all ranks wait in {waits[together[0]].what}, have all called it, and none is behind: "
            "it may be slow, or the connections between them are lost"
        )
    elif waits:
        ends = [waits[number] for number in together]
        what = "; ".join(
            f"rank {wait.rank} waits in {wait.what}{site_in_words(wait.site)}" for wait in ends[:4]
        )
        what = f"{what or f'{ranks_in_words(tuple(waits))} wait'}: nothing tells for whom"
    else:
        what = "no rank waits for another, as far as can be seen"
    return Finding(
        "unknown",
        "warning",
        what,
        innocent=innocents(waits, ()),
        evidence=(
            *(seen(rank) for rank in list(evidence.ranks.values())[:MOST]),
            *_out_of_reach(evidence),
        ),
    )


def _out_of_reach(evidence: Evidence) -> list[str]:
    """Which nodes did not reach others, which may have reached them."""
    pairs = [(node, other) for node in evidence.nodes.values() for other in node.cut_off_from]
    return [f"{node.name} does not reach {other}: {node.peers[other]}" for node, other in pairs][
        :MOST
    ]
