"""The verdict on ranks that have all ended well, and not called the same collectives.

Nothing hangs where the tensors go together, and the last calls are such as need nobody (a broadcast
of its root, the last of a barrier). But from the one that was left out on, each went with another.
"""

from collections.abc import Mapping
from dataclasses import replace

from lab.diagnose.finding import Finding, WhyKind
from lab.diagnose.why.differing import CURES, judge_differing
from lab.diagnose.why.evidence import Evidence, GroupKey
from lab.diagnose.why.telling import at
from lab.diagnose.why.wording import called_at, group_in_words, short_in_words
from lab.diagnose.words import ranks_in_words


def judge_end(evidence: Evidence) -> Finding | None:
    """Name the ranks that have called more or less than others; None where all have told the same.

    What differs and is as many on all ranks may be meant so: a line of its own for the root, say.
    """
    counts = {group: told for group in evidence.groups if (told := _counts(evidence, group))}
    uneven = {group: told for group, told in counts.items() if len(set(told.values())) > 1}
    if not uneven:
        return None
    ranks = {
        n: replace(rank, collectives=tuple(one for one in rank.collectives if one.group in uneven))
        for n, rank in evidence.ranks.items()
    }
    found = judge_differing(replace(evidence, ranks=ranks), {})
    group, told = next(iter(uneven.items()))
    found = found or _uncounted(evidence, group, told)
    number = ", ".join(f"{count} on rank {n}" for n, count in list(told.items())[:8])
    how_many = f"collectives of {group_in_words(group, evidence)} in all: {number}"
    return replace(found, severity="warning", evidence=(*found.evidence, how_many))


def _counts(evidence: Evidence, group: GroupKey) -> Mapping[int, int]:
    """How many each member has called; nothing where not all have told."""
    ranks = [evidence.ranks.get(n) for n in group[1]]
    if any(rank is None or group not in rank.groups for rank in ranks):
        return {}
    return {rank.number: max(rank.called.get(group, ()), default=0) for rank in ranks if rank}


def _uncounted(evidence: Evidence, group: GroupKey, told: Mapping[int, int]) -> Finding:
    """Nothing but the numbers differs, as far as it is recorded."""
    sides: dict[int, list[int]] = {}
    for n, count in told.items():
        sides.setdefault(count, []).append(n)
    (usual, right), (other, wrong), *_ = sorted(sides.items(), key=lambda side: -len(side[1]))
    kind: WhyKind = "skipped-collective" if other < usual else "extra-collective"
    if len(right) == len(wrong):
        kind = "mismatched-collective"
    ranks = tuple(sorted(told if kind == "mismatched-collective" else wrong))
    most, first_over = (right, other + 1) if other < usual else (wrong, usual + 1)
    call = evidence.ranks[most[0]].called[group].get(first_over)
    finding = Finding(
        kind,
        "warning",
        f"{ranks_in_words(sorted(wrong))} called {other} collectives of "
        f"{group_in_words(group, evidence)}, and {ranks_in_words(sorted(right))} {usual}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        evidence=(
            ()
            if call is None
            else (
                f"#{first_over}, which only {ranks_in_words(sorted(most))} called: "
                f"{short_in_words(call)}{called_at(call)}",
            )
        ),
        cure=CURES[kind],
    )
    return at(finding, call.site) if call and kind == "extra-collective" else finding
