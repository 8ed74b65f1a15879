"""The verdict on ranks that wait for each other in a circle."""

from collections.abc import Mapping

from lab.diagnose.finding import Finding
from lab.diagnose.why.evidence import Evidence
from lab.diagnose.why.telling import at
from lab.diagnose.why.waits import Wait, circle, innocents
from lab.diagnose.why.wording import group_in_words, site_in_words
from lab.diagnose.words import ranks_in_words

CURES = {
    True: "call the collectives of different groups in the same order on all ranks",
    False: "let one side send first, or post the sends before the receives (isend, "
    "batch_isend_irecv)",
}


def judge_deadlock(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Name the ranks of the circle: each is right by itself, so all of them are named."""
    order = circle(waits)
    if not order:
        return None
    steps = [
        f"rank {rank} waits for rank {after} in {waits[rank].what}{site_in_words(waits[rank].site)}"
        for rank, after in zip(order, (*order[1:], order[0]), strict=True)
    ]
    ranks = tuple(sorted(order))
    chain = " -> ".join(str(rank) for rank in (*order, order[0]))
    finding = Finding(
        "deadlock",
        "error",
        f"{ranks_in_words(ranks)} wait for each other in a circle ({chain}): {'; '.join(steps)}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        innocent=innocents(waits, ranks),
        evidence=_counters(evidence, waits, order),
        cure=CURES[any(waits[rank].call is not None for rank in order)],
    )
    return at(finding, waits[order[0]].site)


def _counters(
    evidence: Evidence, waits: Mapping[int, Wait], order: tuple[int, ...]
) -> tuple[str, ...]:
    """How far each rank of the circle has come in the groups that the circle goes through."""
    groups = dict.fromkeys(wait.group for rank in order if (wait := waits[rank]).call is not None)
    return tuple(
        f"rank {rank} has begun {max(called, default=0)} collectives of "
        f"{group_in_words(group, evidence)}"
        for group in groups
        if group is not None
        for rank in sorted(order)
        if rank in group[1] and (called := evidence.ranks[rank].called.get(group, {})) is not None
    )
