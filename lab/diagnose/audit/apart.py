"""What is said of replicas that are not equal, or have not equal gradients."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lab.diagnose.audit.layouts import listed, minority
from lab.diagnose.audit.options import Difference
from lab.diagnose.audit.records import line_of
from lab.diagnose.audit.seen import Seen
from lab.diagnose.finding import Finding
from lab.diagnose.words import place_in_words, ranks_in_words

Site = Mapping[str, Any]

BY_ROUNDING = (
    "the difference is no larger than rounding: the ranks may have computed the same in other "
    "ways, or their nodes have other processors or versions of torch"
)


def say_apart(seen: Seen, places: Collection[int], made: Mapping[int, Site | None]) -> Finding:
    """Gradients are equal, so they are put together; the weights never were.

    `made`: where each rank made its model.
    """
    ranks = seen.guilty(places, "parameters")
    everybody = len(ranks) == len(seen.records)
    beyond = seen.beyond_rounding(places)
    begin = f"begin{'s' * (len(ranks) == 1)} with other weights"
    if everybody:
        begin = "each begin with weights of their own"
    return Finding(
        "weights-differ-at-start",
        "error" if beyond else "warning",
        f"{ranks_in_words(ranks)} {begin}: {_names(seen, places)}",
        ranks=ranks,
        step=1,
        **line_of(made[ranks[-1]] or seen.records[ranks[-1]]),
        evidence=(
            _norm_of_first(seen, places),
            *([] if beyond else [BY_ROUNDING]),
            "their gradients are equal: the ranks put them together, but each adds them to "
            "weights of its own",
        ),
        cure="load or change weights before the model is wrapped, or on every rank alike: "
        "DistributedDataParallel sends rank 0's once, when it is constructed"
        if all(seen.layout.managed[place] for place in places)
        else "send rank 0's weights to all ranks before the first step, as "
        "DistributedDataParallel does; or build the model from one seed on all ranks",
    )


def say_differing(
    seen: Seen, places: set[int], since: int, options: Sequence[Difference]
) -> Finding:
    """Weights that were equal have come apart at a step, though gradients were equal."""
    ranks = seen.guilty(places, "parameters")
    others = "differ" if len(ranks) == len(seen.records) else "differ from the others'"
    beyond = seen.beyond_rounding(places)
    steps = {rank: float(record["count"] - 1) for rank, record in seen.records.items()}
    evidence = [_norm_of_first(seen, places), *([] if beyond else [BY_ROUNDING])]
    cure = (
        "something but the averaged gradients changes the weights of these ranks: look for "
        "learning rates, optimizers or branches that depend on the rank"
    )
    if len(set(steps.values())) > 1:
        evidence.append(_by_rank("steps that the optimizer has made", steps))
        cure = (
            "make the same number of steps on every rank: whether one is left out must be decided "
            "by what all ranks know, as by an all-reduce of the condition"
        )
    return Finding(
        "parameters-differ",
        "error" if beyond else "warning",
        f"the weights of {ranks_in_words(ranks)} {others} since step {since}: "
        f"{_names(seen, places)}{_of_optimizers(options)}",
        ranks=ranks,
        step=since,
        **line_of(seen.records[ranks[-1]]),
        evidence=(*evidence, "up to then weights and averaged gradients were equal"),
        cure=_same(options) if options else cure,
    )


def say_options(seen: Seen, since: int, last: int, options: Sequence[Difference]) -> Finding:
    """They differ, and weights have not come apart: no step was seen after it, perhaps."""
    ranks = minority({rank: str(options[0].values[rank]) for rank in seen.records})
    return Finding(
        "parameters-differ",
        "warning",
        f"{ranks_in_words(ranks)} update the same weights in other ways since step "
        f"{since}{_of_optimizers(options)}",
        ranks=ranks,
        step=since,
        **line_of(seen.records[ranks[-1]]),
        evidence=(
            f"up to step {last} the weights themselves were seen to be equal",
            *map(str, options[1:]),
        ),
        cure=_same(options),
    )


def say_strangers(seen: Seen, steps: int, what: str, how: str) -> Finding:
    """Ranks that send each other nothing, and may not be meant to."""
    return Finding(
        "gradients-not-reduced",
        "warning",
        f"{ranks_in_words(seen.ranks)} {what} each other nothing in {steps} steps: each "
        f"trains a model of its own, {how}",
        ranks=seen.ranks,
        step=steps,
        **line_of(seen.records[seen.ranks[-1]]),
        evidence=(_gradient_norms(seen),),
        cure="wrap the model in DistributedDataParallel and call the wrapped one; where "
        "each rank is meant to try something for itself, nothing is wrong",
    )


def say_unreduced(
    seen: Seen, places: set[int], step: int, apart: set[int], no_sync: Site | None
) -> Finding:
    """Ranks step with gradients that are not those of the others.

    `apart`: parameters that differed at the first step. `no_sync`: where it was on.
    """
    ranks = seen.guilty(places, "gradients") or seen.ranks
    evidence = [_gradient_norms(seen)]
    if places <= apart:
        evidence.append("the weights have differed since the first step as well")
    last = line_of(seen.records[ranks[-1]])
    alone = Finding(
        "gradients-not-reduced",
        "error",
        _step_alone(seen, ranks, places),
        ranks=ranks,
        step=step,
        **last,
        evidence=tuple(evidence),
    )
    if no_sync is not None:
        return replace(
            alone,
            kind="no-sync-at-step",
            summary=f"{alone.summary}: no_sync was on in the last backward before it",
            **line_of(no_sync),
            cure="leave no_sync before the forward of the last micro-batch of each step",
        )
    late = next((one["late"] for one in seen.records.values() if one["late"]), None)
    if late is not None:
        where = place_in_words(last["file"], last["line"])
        step_is_at = () if where is None else (f"the step itself is at {where}",)
        return replace(
            alone,
            summary=f"{alone.summary}: these are put together after the step, which is too "
            "late for it",
            **line_of(late),
            evidence=(*alone.evidence, *step_is_at),
            cure="put the gradients together between backward and the optimizer's step",
        )
    if len(ranks) < len(seen.records):
        return _say_changed(seen, alone, places)
    is_whole = len(places) == len(seen.layout.names)
    effect = "each trains a model of its own" if is_whole else "they are others on each rank"
    why, cure = _why_unreduced(seen, places)
    return replace(
        alone,
        summary=f"{alone.summary}: {effect}",
        evidence=(*alone.evidence, *why),
        cure=cure,
    )


def _why_unreduced(seen: Seen, places: Collection[int]) -> tuple[list[str], str]:
    """What is known of why no two ranks have the same gradients; and the cure."""
    layout = seen.layout
    sent = {what for record in seen.records.values() for what in record["exchanged"]}
    alike = (
        "what changes gradients afterwards (clipping, scaling, noise) must do the same on all ranks"
    )
    if "reduce" in sent:
        return (
            ["gradients are put together by dist.reduce, which gives the sum to one rank alone"],
            "put the gradients together by all_reduce, which gives the sum to every rank",
        )
    if all(layout.managed[place] for place in places):
        return (
            [
                "the model is wrapped: what reduces these gradients was not called or does not "
                "know them, or they were changed after it, on each rank in another way"
            ],
            "wrap the model in DistributedDataParallel once all its layers are there, and call the "
            f"wrapped one; {alike}",
        )
    if any(layout.parts) and not any(layout.parts[place] for place in places):
        return (
            ["other parameters of this optimizer are shared out among the ranks, these are not"],
            "have the whole model sharded as well, not its parts alone: fully_shard(model) after "
            "its layers; nobody reduces the gradients of what is in none of them",
        )
    cure = (
        "wrap the model in DistributedDataParallel once all its layers are there, and call the "
        "wrapped one; or average all gradients over the ranks between backward and step"
    )
    return [], f"{cure}. If that is done: {alike}" if sent else cure


def say_overwritten(seen: Seen, places: set[int], since: int, source: int) -> Finding:
    """One rank's weights are sent to all now and then, and nothing that the others compute."""
    ranks = tuple(rank for rank in seen.ranks if rank != source)
    learn = "it learns" if len(ranks) == 1 else "they learn"
    return Finding(
        "gradients-not-reduced",
        "error",
        f"{_step_alone(seen, ranks, places)}, and what {learn} is lost: rank {source}'s weights "
        "are sent to all now and then, and nothing else is sent",
        ranks=ranks,
        step=since,
        **line_of(seen.records[ranks[-1]]),
        evidence=(
            _gradient_norms(seen),
            f"the weights differed, and were equal again after broadcasts from rank {source}",
        ),
        cure="average the gradients over the ranks, as DistributedDataParallel does, or average "
        "the weights where they are sent now",
    )


def say_owners_alone(seen: Seen, places: set[int], since: int) -> Finding:
    """Each rank updates a part of the weights for all (ZeRO), by its own gradients."""
    return Finding(
        "gradients-not-reduced",
        "error",
        f"{_step_alone(seen, seen.ranks, places)}: the optimizer has each rank update a part of "
        "the weights and send it to the others, so that each part learns from one rank's data "
        "alone",
        ranks=seen.ranks,
        step=since,
        **line_of(seen.records[seen.ranks[-1]]),
        evidence=(
            _gradient_norms(seen),
            "the weights themselves stay equal, since the optimizer sends them",
        ),
        cure="wrap the model in DistributedDataParallel and call the wrapped one, or average the "
        "gradients over the ranks between backward and step: ZeroRedundancyOptimizer reduces none",
    )


def _say_changed(seen: Seen, alone: Finding, places: Collection[int]) -> Finding:
    """Most ranks have equal gradients, which no two have by themselves."""
    others = tuple(rank for rank in seen.ranks if rank not in alone.ranks)
    verb = "steps" if len(alone.ranks) == 1 else "step"
    return replace(
        alone,
        summary=f"{ranks_in_words(alone.ranks)} {verb} with other gradients than "
        f"{ranks_in_words(others)}, whose gradients are equal: {_names(seen, places)}",
        cure="let these ranks take part in what puts gradients together, and change them on "
        "all ranks alike afterwards: look for clipping, scaling or conditions that depend on "
        "the rank between backward and step",
    )


def _step_alone(seen: Seen, ranks: tuple[int, ...], places: Collection[int]) -> str:
    one = len(ranks) == 1
    step, whose = ("steps", "its") if one else ("step", "their")
    what = _names(seen, places)
    return f"{ranks_in_words(ranks)} {step} with gradients of {whose} own, of {what}"


def _names(seen: Seen, places: Collection[int]) -> str:
    if len(places) == len(seen.layout.names) > 1:
        return f"all {len(places)} parameters"
    return listed([seen.layout.names[place] for place in sorted(places)])


def _of_optimizers(options: Sequence[Difference]) -> str:
    """`; the optimizers' lr is 0.1 on rank 0, 0.2 on rank 1`."""
    return f"; the optimizers' {' and '.join(map(str, options[:2]))}" if options else ""


def _same(options: Sequence[Difference]) -> str:
    if options[0].name == "optimizer":
        return "make the same optimizer on every rank"
    names = " and ".join(one.name for one in options[:2])
    return (
        f"give the optimizers the same {names} on every rank: look for values, or steps of a "
        "scheduler, that depend on the rank or on what it alone has computed"
    )


def _norm_of_first(seen: Seen, places: Collection[int]) -> str:
    first = min(places)
    name = seen.layout.names[first]
    norms = seen.norms(first)
    if len(set(norms.values())) == 1:  # of orthogonal matrices, say
        return _by_rank(f"the sum of {name}'s elements", seen.sums(first))
    return _by_rank(f"the norm of {name}", norms)


def _gradient_norms(seen: Seen) -> str:
    return _by_rank("norms of the gradients", seen.gradient_norms())


def _by_rank(what: str, values: Mapping[int, float]) -> str:
    """`the norm of weight: 1.25 on rank 0, 1.5 on ranks 1-3`."""
    ranks: dict[str, list[int]] = {}
    as_usual = {f"{value:.6g}" for value in values.values()}
    digits = 6 if len(as_usual) == len(set(values.values())) else 9  # those tell all floats apart
    for rank, value in sorted(values.items()):
        ranks.setdefault(f"{value:.{digits}g}", []).append(rank)
    shown = [f"{value} on {ranks_in_words(each)}" for value, each in list(ranks.items())[:8]]
    return f"{what}: {', '.join(shown)}"
