"""The verdict on ranks that gloo has aborted in the others' call: their tensor is a smaller one."""

from collections.abc import Mapping
from dataclasses import dataclass

from lab.diagnose.finding import Finding
from lab.diagnose.why.aborted.room import sent
from lab.diagnose.why.differing import CURES
from lab.diagnose.why.evidence import Collective, Evidence
from lab.diagnose.why.sequences import place_of, rounds
from lab.diagnose.why.waits import Wait, innocents
from lab.diagnose.why.wording import call_in_words, called_at, group_in_words, short_in_words, who
from lab.diagnose.words import NOBODY_KNOWS, ranks_in_words


@dataclass(frozen=True)
class Smaller:
    """Aborted ranks, all at one line."""

    ranks: tuple[int, ...]
    room: int
    """How many bytes there were for one message on the first of them."""
    op: str
    """What its stack says that it called."""

    def than(self, call: Collective) -> str:
        """`with a smaller tensor`, if it has called the same."""
        return "with a smaller tensor" if self.op == call.op.lstrip("_") else "with less room"


def judge_smaller(
    evidence: Evidence,
    calls: Mapping[int, Collective],
    smaller: Smaller,
    numbered: bool,
    waits: Mapping[int, Wait],
) -> Finding:
    """Name those that are fewer; of equally many, who no more does what it did in earlier rounds.

    Args:
        evidence: all of it.
        calls: of those with the larger tensor, by rank.
        smaller: the others.
        numbered: whether the number of the call is known, or only its line.
        waits: who waits.
    """
    larger, few = tuple(sorted(calls)), smaller.ranks
    call, group = calls[larger[0]], calls[larger[0]].group
    place, than = called_at(call), smaller.than(call)
    number = f" #{call.seq}" if numbered else ""
    told: tuple[str, ...] = ()
    usual = _usual(evidence, larger[0], call) if numbered else None
    is_new = usual is not None and smaller.room in (sent(usual) or ())
    if len(larger) > len(few):
        guilty = few
        summary = (
            f"{who(few, evidence)} called {smaller.op}{number} of "
            f"{group_in_words(group, evidence)}{place} {than}, where {ranks_in_words(larger)} "
            f"called {short_in_words(call)}"
        )
    elif len(larger) < len(few) or is_new:
        guilty = larger
        named = call_in_words(call, evidence) if numbered else short_in_words(call)
        summary = (
            f"{who(larger, evidence)} called {named}{place}, where {ranks_in_words(few)} called "
            f"{smaller.op} {than}"
        )
        if is_new and usual is not None:
            told = (f"in earlier rounds of its loop it called {short_in_words(usual)} there",)
    else:
        guilty = tuple(sorted({*larger, *few}))
        summary = (
            f"as collective{number} of {group_in_words(group, evidence)}{place}, "
            f"{who(larger, evidence)} called {short_in_words(call)}, and {who(few, evidence)} "
            f"{smaller.op} {than}"
        )
        told = (NOBODY_KNOWS,)
    return Finding(
        "mismatched-collective",
        "error",
        summary,
        ranks=guilty,
        nodes=evidence.nodes_of(guilty),
        innocent=innocents(waits, guilty),
        evidence=told,
        cure=CURES["mismatched-collective"],
    )


def _usual(evidence: Evidence, rank: int, call: Collective) -> Collective | None:
    """What this rank called at this line in earlier rounds; None: the same, or nothing tells."""
    calls = evidence.ranks[rank].called[call.group]
    before = [calls[earlier + 1] for earlier in rounds(calls, call.seq, _alike)]
    if not before or any(_alike(one, call) for one in before):
        return None
    return before[-1] if place_of(before[-1].site) == place_of(call.site) else None


def _alike(one: Collective, other: Collective) -> bool:
    same = one.op == other.op and one.shapes == other.shapes and one.dtypes == other.dtypes
    return same and place_of(one.site) == place_of(other.site)
