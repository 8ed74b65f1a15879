"""The verdict on ranks that call different collectives."""

from collections.abc import Mapping

from lab.diagnose.finding import Finding, Innocent, WhyKind
from lab.diagnose.why.activity import activity_of
from lab.diagnose.why.evidence import Evidence
from lab.diagnose.why.joined import with_join
from lab.diagnose.why.sequences import Divergence, first_divergence, place, place_of
from lab.diagnose.why.telling import at, seen
from lab.diagnose.why.unused import UNUSED_CURE, unused_by
from lab.diagnose.why.waits import Wait, innocents
from lab.diagnose.why.wording import (
    call_in_words,
    called_at,
    group_in_words,
    short_in_words,
    who,
)
from lab.diagnose.words import NOBODY_KNOWS, ranks_in_words

DDP_CURE = (
    "run forward and backward on every rank in every step: a rank without a useful batch adds "
    "nothing (its loss times 0), or all ranks skip the step together; a parameter that gets no "
    "gradient has the same effect"
)
INSIDE_CURE = (
    "call the wrapped model on all ranks, or the one inside (model.module of DDP) where only some "
    "ranks do, as to evaluate"
)
LOOP_CURE = "; where it comes after a loop, give the loop as many rounds on all ranks"
CURES: Mapping[WhyKind, str] = {
    "skipped-collective": "let every rank make this call, also one that has nothing to add"
    + LOOP_CURE,
    "extra-collective": "make this call on all ranks of the group, or on none: "
    "move it out of the condition that only some ranks meet" + LOOP_CURE,
    "mismatched-collective": "give all ranks the same operation, and tensors of the same shape "
    "and dtype, at this point",
}
ROUNDS_CURE = (
    "one of the two: where the call comes after a loop, give the loop as many rounds on all ranks "
    "(DistributedSampler, drop_last=True, a decision to stop that all ranks share, DDP's join()); "
    "where only some ranks come to it, make it on all ranks of the group, or on none"
)
"""Where a rank has made a call too many, or come to it too early."""


def judge_differing(evidence: Evidence, waits: Mapping[int, Wait]) -> Finding | None:
    """Name the rank whose list of collectives is not as the others'; None where they are equal."""
    found = first_divergence(evidence)
    return None if found is None else finding_of(evidence, found, waits)


def finding_of(evidence: Evidence, found: Divergence, waits: Mapping[int, Wait]) -> Finding:
    """Tell of one divergence."""
    return with_join(_finding_of(evidence, found, waits), evidence, found, waits)


def _finding_of(evidence: Evidence, found: Divergence, waits: Mapping[int, Wait]) -> Finding:
    if not found.certain:
        return _nobody_in_particular(evidence, found, waits)
    unused = _unused(evidence, found)
    finding = Finding(
        "unused-parameter" if unused else found.kind,
        "error",
        _summary(evidence, found) + (f"; no gradient: {', '.join(unused)}" if unused else ""),
        ranks=found.ranks,
        nodes=evidence.nodes_of(found.ranks),
        innocent=_others(found, waits),
        evidence=_seen(evidence, found),
        cure=UNUSED_CURE if unused else _cure(found),
    )
    return at(finding, found.called.site)


def cure_of(kind: WhyKind, via: str | None) -> str:
    """What to change, where calls differ.

    `via`: through what the call was made that was left out, or that is one too many.
    """
    if kind == "skipped-collective" and via in ("backward", "forward"):
        return DDP_CURE
    if kind == "extra-collective" and via == "forward":
        return INSIDE_CURE
    return CURES[kind]


def _cure(found: Divergence) -> str:
    cure = cure_of(found.kind, _via(found))
    return ROUNDS_CURE if found.is_open and cure == CURES["extra-collective"] else cure


def _via(found: Divergence) -> str | None:
    """Through what of a library the call was made that was left out, or is one too many."""
    is_skipped = found.kind == "skipped-collective"
    return (found.expected if is_skipped else found.called).via


def _summary(evidence: Evidence, found: Divergence) -> str:
    guilty, others = who(found.ranks, evidence), ranks_in_words(found.others)
    call = call_in_words(found.called, evidence) + called_at(found.called)
    they = "it" if len(found.others) == 1 else "they"
    expected = called_at(found.expected)
    if found.kind == "skipped-collective":
        further = f" and {found.count - 1} more" if found.count > 1 else ""
        went_on = short_in_words(found.called) + called_at(found.called)
        return (
            f"{guilty} skipped {call_in_words(found.expected, evidence)}{further}, which {others} "
            f"called{expected}, and went on to {went_on}"
        )
    if found.kind == "extra-collective" and found.is_open:
        it = "it" if len(found.ranks) == 1 else "they"
        return (
            f"{guilty} called {call}, where {others} called {short_in_words(found.expected)}"
            f"{expected} once more: either {it} did fewer rounds with that line, or only {it} "
            f"{'makes' if it == 'it' else 'make'} this call"
        )
    if found.kind == "extra-collective":
        return (
            f"{guilty} called {call}, which {others} did not: "
            f"{they} went on to {short_in_words(found.expected)}{expected}"
        )
    smaller = "" if found.called.is_recorded else " with a smaller tensor"
    theirs = f"{short_in_words(found.expected)}{expected}"
    return f"{guilty} called {call}{smaller}, where {others} called {theirs}"


def _nobody_in_particular(
    evidence: Evidence, found: Divergence, waits: Mapping[int, Wait]
) -> Finding:
    """As many ranks on one side as on the other, and no earlier round of a loop to compare with."""
    sides = [(found.others, found.expected), (found.ranks, found.called)]
    told = [
        f"{who(ranks, evidence)} called {short_in_words(call)}{called_at(call)}"
        for ranks, call in sorted(sides, key=lambda side: side[0])
    ]
    ranks = tuple(sorted({*found.others, *found.ranks}))
    place = found.called.site if found.called.site == found.expected.site else None
    number = f"collective #{found.seq} of {group_in_words(found.group, evidence)}"
    finding = Finding(
        "mismatched-collective",
        "error",
        f"as {number}, {' and '.join(told)}",
        ranks=ranks,
        nodes=evidence.nodes_of(ranks),
        innocent=innocents(waits, ranks),
        evidence=(
            *_seen(evidence, found),
            NOBODY_KNOWS,
        ),
        cure=CURES["mismatched-collective"],
    )
    return at(finding, place)


def _seen(evidence: Evidence, found: Divergence) -> tuple[str, ...]:
    group = group_in_words(found.group, evidence)
    told = [_before(evidence, found, group)]
    for ranks, call in ((found.others, found.expected), (found.ranks, found.called)):
        what = f"{short_in_words(call)}{called_at(call)}"
        told.append(f"#{found.seq} of {ranks_in_words(ranks)}: {what}")
    for number in found.ranks[:4]:
        rank = evidence.ranks[number]
        now = place_of(activity_of(rank).site)
        if rank.ended is None and now != place_of(found.called.site):  # it has gone on since
            told.append(f"now {seen(rank)}")
    return tuple(told)


def _before(evidence: Evidence, found: Divergence, group: str) -> str:
    if found.seq == 1:
        return f"the ranks differ in the first collective of {group}"
    recorded = [
        evidence.ranks[number].called[found.group] for number in (*found.others, *found.ranks)
    ]
    if any(found.seq - 1 in calls for calls in recorded[: len(found.others)]):
        before = f"up to #{found.seq - 1} the ranks' collectives of {group}"
        places = {
            n: {place(calls[n]) for calls in recorded if n in calls}
            for n in recorded[0]
            if n < found.seq
        }
        if any(len(each) > 1 for each in places.values()):
            return f"{before} go together, though not all are of the same lines"
        return f"{before} are the same"
    return f"what was before #{found.seq} of {group} is not recorded any more"


def _unused(evidence: Evidence, found: Divergence) -> tuple[str, ...]:
    """Parameters that the guilty ranks alone got no gradient for, where DDP's call was skipped."""
    if found.kind != "skipped-collective" or found.expected.via != "backward":
        return ()
    return unused_by(evidence.ranks[found.ranks[0]], evidence)


def _others(found: Divergence, waits: Mapping[int, Wait]) -> tuple[Innocent, ...]:
    """Who waits; and who called what all should have called, and waits no more."""
    waiting = innocents(waits, found.ranks)
    done = tuple(sorted({*found.others} - {rank for one in waiting for rank in one.ranks}))
    if not done:
        return waiting
    site = found.expected.site
    called = Innocent(
        done,
        f"called {short_in_words(found.expected)}",
        file=site.file if site else None,
        line=site.line if site else None,
        function=site.function if site else None,
        since=found.expected.time,
    )
    return (*waiting, called)
