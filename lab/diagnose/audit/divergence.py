"""The replicas of one optimizer's parameters on some ranks, followed from step to step.

What differs on purpose is told from what differs by mistake by what the ranks exchange:

- parts of a model on several ranks (tensor or pipeline parallel, experts): activations are sent in
  forward and backward, or ranks send to one another, or in subgroups;
- parameters that are averaged now and then (local SGD): they are sent, or become equal again;
- models of the ranks' own: weights differ from the start, and nothing is put together.

FSDP's parts are not compared at all.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lab.diagnose.audit.exchanged import Exchanged
from lab.diagnose.audit.layouts import Layout, listed, minority, unpacked
from lab.diagnose.audit.options import WAYS, Difference, differences
from lab.diagnose.audit.records import Record
from lab.diagnose.finding import Finding, Severity
from lab.diagnose.words import place_in_words, ranks_in_words

ROUNDING = 1e-6
"""Relative: norms that differ by less may do so by rounding, on processors of different kinds."""
PATIENCE = 1000
"""Steps after which weights would have been averaged if they ever were (local SGD)."""

Site = Mapping[str, Any]


class Divergence:
    """Compares one step after the other, and says once of each parameter what is wrong with it.

    Parameters are named by their places in the optimizer.
    """

    def __init__(self, layout: Layout, made: Mapping[int, Site | None]) -> None:
        """`made`: where each rank made its model."""
        self._layout = layout
        self._made = made
        self._exchanged = Exchanged()
        self._last = 0
        """The step that was compared last."""
        self._apart: set[int] = set()
        """Those that differed at the first."""
        self._unreduced: dict[int, int] = {}
        """Those whose gradients differ: the step at which they did first."""
        self._seen: Mapping[int, Record] = {}
        """The records of the last step at which gradients differed."""
        self._other_data = False
        """Whether equal weights had other gradients at the first step, so other data."""
        self._no_sync: Site | None = None
        self._unequal: set[int] = set()
        """Those whose gradients differed at the last step."""
        self._said: set[int] = set()
        self._rounded: dict[int, int] = {}
        """Those said to differ by no more than rounding: the step since which they do."""
        self._records: Mapping[int, Record] = {}
        self._before: Mapping[int, Record] = {}
        """Those of the step that was compared before."""
        self._other_options: int | None = None
        """The step since which the ranks' optimizers have other options."""

    def compare(self, count: int, records: Mapping[int, Record]) -> list[Finding]:
        """Take what the ranks had before their count-th step."""
        self._exchanged.note(records.values())
        before, self._last = self._last, count
        self._before, self._records = self._records or records, records
        self._note_options(count)
        weights = self._differing("parameters")
        gradients = self._differing("gradients")
        if before == 0:
            self._apart = set(weights)
            self._other_data = bool(gradients - weights)
        if not (weights or gradients or self._unreduced):
            return []
        # See `nan.NotFinite`: these are not equal to themselves; and `gradients.NotWaitedFor`.
        if self._has_nan() or any(record["unwaited"] for record in records.values()):
            self._said |= set(range(len(self._layout.names)))
            return []
        for place in self._unreduced.keys() - weights:
            del self._unreduced[place]
            self._exchanged.averages = True
        found = self._find(count, before, weights, gradients)
        self._note_unreduced(count, gradients)
        self._unequal = gradients - self._said
        return found

    def close(
        self, *, joined_in_vain: bool = False, gathers_results: bool = False
    ) -> list[Finding]:
        """The ranks have ended.

        `joined_in_vain`: all have joined one world, and called nothing in it.
        `gathers_results`: what was called in it does nothing else.
        """
        places = self._unreduced.keys() | (self._apart & self._unequal)
        if not self._are_one and joined_in_vain and places and self._exchanged.is_nothing:
            return self._say_strangers("have joined one world, and sent", "from weights of its own")
        if self._are_by_themselves and gathers_results and places and self._are_one:
            return self._say_strangers("gather their results, but send", "on its own data")
        if self._exchanged.allows_differences or not self._are_one:
            return []
        if not places:
            return self._say_options()
        if self._should_be_reduced(places):
            return []  # seen at the last step alone: a wrapper may have raised there
        return self._say_unreduced(places)

    def _find(
        self, count: int, before: int, weights: set[int], gradients: set[int]
    ) -> list[Finding]:
        """What is wrong with parameters that differ."""
        apart = weights & self._apart
        if together := apart & self._together(gradients):
            return self._say_apart(together)
        if self._exchanged.allows_differences or not self._are_one:
            return []
        unreduced = (self._unreduced.keys() & weights) | (apart & gradients)
        late = self._exchanged.late > 1
        patient = count < PATIENCE or self._are_by_themselves
        if unreduced and (late or not patient or self._should_be_reduced(unreduced)):
            return self._say_unreduced(unreduced)
        fresh = weights - self._apart - self._unreduced.keys()
        fresh = self._beyond_rounding(fresh & self._rounded.keys()) or fresh - self._rounded.keys()
        return self._say_differing(fresh, before) if fresh and self._reduces else []

    def _should_be_reduced(self, places: Collection[int]) -> bool:
        """Whether a wrapper is there to do it, and was not told to leave it out."""
        return all(self._layout.managed[place] for place in places) and self._no_sync is None

    @property
    def _reduces(self) -> bool:
        """Whether gradients are put together at all."""
        return self._exchanged.gradients or any(self._layout.managed)

    @property
    def _are_one(self) -> bool:
        """Whether the models are meant to be one, though they may have nothing in common.

        Ranks may try other seeds, or other learning rates with the same seed, each for itself.
        """
        sent = self._exchanged
        if self._reduces or sent.losses or sent.begins or self._layout.sampler:
            return True
        return self._other_data and not self._apart

    @property
    def _are_by_themselves(self) -> bool:
        """Whether nothing says that they train together: each may have a fold of the data."""
        return self._exchanged.is_nothing and not (self._reduces or self._layout.sampler)

    def _together(self, gradients: set[int]) -> set[int]:
        """Those of which all ranks have the same gradient, and not only none or zero."""
        norms = unpacked("f", next(iter(self._records.values()))["gradient_norms"])
        return {place for place, norm in enumerate(norms) if norm > 0} - gradients

    def _note_unreduced(self, count: int, gradients: set[int]) -> None:
        fresh = gradients - self._apart - self._said
        if fresh:
            self._seen = self._records
        for place in fresh:
            self._unreduced.setdefault(place, count)
        for record in self._records.values():
            if gradients and record["no_sync"] is not None:
                self._no_sync = record["no_sync"]

    def _note_options(self, count: int) -> None:
        if not self._differences(self._records, self._layout.whole):
            self._other_options = None
        elif self._other_options is None:
            self._other_options = count

    # Looking

    @staticmethod
    def _differences(records: Mapping[int, Record], places: Iterable[int]) -> list[Difference]:
        return differences({rank: one["options"] for rank, one in records.items()}, places)

    def _differing(self, what: str) -> set[int]:
        """Those that are not the same on all ranks, but for what has been said."""
        texts = {record[what] for record in self._records.values()}
        if len(texts) == 1:
            return set()
        columns = zip(*(unpacked("I", text) for text in texts), strict=True)
        differing = {place for place, column in enumerate(columns) if len(set(column)) > 1}
        return (differing & set(self._layout.whole)) - self._said

    def _has_nan(self) -> bool:
        norms = [unpacked("f", r["parameter_norms"]) for r in self._records.values()]
        return any(math.isnan(norm) for each in norms for norm in each)

    def _norms(self, place: int) -> dict[int, float]:
        return {r: unpacked("f", x["parameter_norms"])[place] for r, x in self._records.items()}

    def _beyond_rounding(self, places: Collection[int]) -> set[int]:
        """Those of them whose norms differ by more."""
        each = [unpacked("f", record["parameter_norms"]) for record in self._records.values()]
        norms = list(zip(*each, strict=True))
        return {p for p in places if max(norms[p]) - min(norms[p]) > ROUNDING * max(norms[p])}

    def _guilty(self, places: Collection[int], what: str) -> tuple[int, ...]:
        values = {rank: unpacked("I", record[what]) for rank, record in self._records.items()}
        return minority({rank: tuple(v[p] for p in places) for rank, v in values.items()})

    # Saying

    def _names(self, places: Collection[int]) -> str:
        if len(places) == len(self._layout.names) > 1:
            return f"all {len(places)} parameters"
        return listed([self._layout.names[place] for place in sorted(places)])

    def _say_apart(self, places: set[int]) -> list[Finding]:
        """Gradients are equal, so they are put together; the weights never were."""
        self._said |= places
        ranks = self._guilty(places, "parameters")
        everybody = len(ranks) == len(self._records)
        begin = f"begin{'s' * (len(ranks) == 1)} with other weights"
        if everybody:
            begin = "each begin with weights of their own"
        first = min(places)
        return [
            Finding(
                "weights-differ-at-start",
                "error",
                f"{ranks_in_words(ranks)} {begin}: {self._names(places)}",
                ranks=ranks,
                step=1,
                **_place(self._made[ranks[-1]] or self._records[ranks[-1]]),
                evidence=(
                    _by_rank(f"the norm of {self._layout.names[first]}", self._norms(first)),
                    "their gradients are equal: the ranks put them together, but each adds them to "
                    "weights of its own",
                ),
                cure="send rank 0's weights to all ranks before the first step, as "
                "DistributedDataParallel does; or build the model from one seed on all ranks",
            )
        ]

    def _say_differing(self, places: set[int], before: int) -> list[Finding]:
        before = min(
            (self._rounded[place] for place in places & self._rounded.keys()), default=before
        )
        ranks = self._guilty(places, "parameters")
        first = min(places)
        norms = self._norms(first)
        others = "differ" if len(ranks) == len(self._records) else "differ from the others'"
        severity: Severity = "error"
        evidence = [_by_rank(f"the norm of {self._layout.names[first]}", norms)]
        if not self._beyond_rounding(places):
            severity = "warning"
            self._rounded |= dict.fromkeys(places, before)  # it may grow: see again
            evidence.append(
                "the difference is no larger than rounding: the nodes may have other processors, "
                "or other versions of torch"
            )
        else:
            self._said |= places
        evidence.append("up to then weights and averaged gradients were equal")
        cure = (
            "something but the averaged gradients changes the weights of these ranks: look for "
            "learning rates, optimizers or branches that depend on the rank"
        )
        # What was set before the step is what it took; else it may have been set between two looks.
        options = self._differences(self._before, places) or self._differences(
            self._records, places
        )
        if options:
            cure = _same(options)
        return [
            Finding(
                "parameters-differ",
                severity,
                f"the weights of {ranks_in_words(ranks)} {others} since step {before}: "
                f"{self._names(places)}{_of_optimizers(options)}",
                ranks=ranks,
                step=before,
                **_place(self._records[ranks[-1]]),
                evidence=tuple(evidence),
                cure=cure,
            )
        ]

    def _say_options(self) -> list[Finding]:
        """They differ, and weights have not come apart: no step was seen after it, perhaps."""
        options = self._differences(self._records, self._layout.whole)
        options = [one for one in options if one.name not in WAYS]
        said = self._said or self._rounded
        if said or self._other_options is None or not options or not self._reduces:
            return []
        ranks = minority({rank: str(options[0].values[rank]) for rank in self._records})
        return [
            Finding(
                "parameters-differ",
                "warning",
                f"{ranks_in_words(ranks)} update the same weights in other ways since step "
                f"{self._other_options}{_of_optimizers(options)}",
                ranks=ranks,
                step=self._other_options,
                **_place(self._records[ranks[-1]]),
                evidence=(
                    f"up to step {self._last} the weights themselves were seen to be equal",
                    *map(str, options[1:]),
                ),
                cure=_same(options),
            )
        ]

    def _say_strangers(self, what: str, how: str) -> list[Finding]:
        ranks = tuple(sorted(self._records))
        return [
            Finding(
                "gradients-not-reduced",
                "warning",
                f"{ranks_in_words(ranks)} {what} each other nothing in {self._last} steps: each "
                f"trains a model of its own, {how}",
                ranks=ranks,
                step=self._last,
                **_place(self._records[ranks[-1]]),
                evidence=(_by_rank("norms of the gradients", self._gradient_norms()),),
                cure="wrap the model in DistributedDataParallel and call the wrapped one; where "
                "each rank is meant to try something for itself, nothing is wrong",
            )
        ]

    def _say_unreduced(self, places: Collection[int]) -> list[Finding]:
        places = set(places)
        self._said |= places
        step = min((self._unreduced.pop(place, self._last) for place in places), default=1)
        if not self._guilty(places, "gradients"):  # by now all have none
            self._records = self._seen
        ranks = self._guilty(places, "gradients") or tuple(sorted(self._records))
        evidence = [_by_rank("norms of the gradients", self._gradient_norms())]
        if places <= self._apart:
            evidence.append("the weights have differed since the first step as well")
        last = _place(self._records[ranks[-1]])
        alone = Finding(
            "gradients-not-reduced",
            "error",
            self._step_alone(ranks, places),
            ranks=ranks,
            step=step,
            **last,
            evidence=tuple(evidence),
        )
        if self._no_sync is not None:
            return [
                replace(
                    alone,
                    kind="no-sync-at-step",
                    summary=f"{alone.summary}: no_sync was on in the last backward before it",
                    **_place(self._no_sync),
                    cure="leave no_sync before the forward of the last micro-batch of each step",
                )
            ]
        late = next((one["late"] for one in self._records.values() if one["late"]), None)
        if late is not None:
            where = place_in_words(last["file"], last["line"])
            step_is_at = () if where is None else (f"the step itself is at {where}",)
            return [
                replace(
                    alone,
                    summary=f"{alone.summary}: these are put together after the step, which is too "
                    "late for it",
                    **_place(late),
                    evidence=(*alone.evidence, *step_is_at),
                    cure="put the gradients together between backward and the optimizer's step",
                )
            ]
        if len(ranks) < len(self._records):
            return [self._changed(ranks, step, places, evidence)]
        unknown = (
            "the model is wrapped, but what reduces these gradients was not called, or does not "
            "know them"
        )
        is_wrapped = all(self._layout.managed[place] for place in places)
        is_whole = len(places) == len(self._layout.names)
        effect = "each trains a model of its own" if is_whole else "they are others on each rank"
        return [
            replace(
                alone,
                summary=f"{alone.summary}: {effect}",
                evidence=(*alone.evidence, *[unknown] * is_wrapped),
                cure="wrap the model in DistributedDataParallel once all its layers are there, and "
                "call the wrapped one; or average all gradients over the ranks between backward "
                "and step",
            )
        ]

    def _changed(
        self, ranks: tuple[int, ...], step: int, places: Collection[int], evidence: list[str]
    ) -> Finding:
        """Most ranks have equal gradients, which no two have by themselves."""
        others = tuple(rank for rank in self._records if rank not in ranks)
        verb = "steps" if len(ranks) == 1 else "step"
        return Finding(
            "gradients-not-reduced",
            "error",
            f"{ranks_in_words(ranks)} {verb} with other gradients than {ranks_in_words(others)}, "
            f"whose gradients are equal: {self._names(places)}",
            ranks=ranks,
            step=step,
            **_place(self._records[ranks[-1]]),
            evidence=tuple(evidence),
            cure="let these ranks take part in what puts gradients together, and change them on "
            "all ranks alike afterwards: look for clipping, scaling or conditions that depend on "
            "the rank between backward and step",
        )

    def _step_alone(self, ranks: tuple[int, ...], places: Collection[int]) -> str:
        one = len(ranks) == 1
        step, whose = ("steps", "its") if one else ("step", "their")
        what = self._names(places)
        return f"{ranks_in_words(ranks)} {step} with gradients of {whose} own, of {what}"

    def _gradient_norms(self) -> dict[int, float]:
        norms = {r: unpacked("f", x["gradient_norms"]) for r, x in self._records.items()}
        return {
            rank: math.sqrt(sum(norm**2 for norm in each if not math.isnan(norm)))
            for rank, each in norms.items()
        }


def _place(site: Site) -> dict[str, Any]:
    return {name: site[name] for name in ("file", "line", "function")}


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


def _by_rank(what: str, values: Mapping[int, float]) -> str:
    """`the norm of weight: 1.25 on rank 0, 1.5 on ranks 1-3`."""
    ranks: dict[str, list[int]] = {}
    for rank, value in sorted(values.items()):
        ranks.setdefault(f"{value:.6g}", []).append(rank)
    shown = [f"{value} on {ranks_in_words(each)}" for value, each in list(ranks.items())[:8]]
    return f"{what}: {', '.join(shown)}"
