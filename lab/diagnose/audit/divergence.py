"""The replicas of one optimizer's parameters on some ranks, followed from step to step.

What differs on purpose is told from what differs by mistake by what the ranks exchange:

- parts of a model on several ranks (tensor or pipeline parallel, experts): activations are sent in
  forward and backward, or ranks send to one another, or in subgroups;
- parameters that are averaged now and then (local SGD): they are sent, or become equal again;
- models of the ranks' own: weights differ from the start, and nothing is put together.

FSDP's parts are not compared at all.
"""

import math
from collections.abc import Collection, Mapping

from lab.diagnose.audit.apart import (
    Site,
    say_apart,
    say_differing,
    say_options,
    say_overwritten,
    say_owners_alone,
    say_strangers,
    say_unreduced,
)
from lab.diagnose.audit.exchanged import Exchanged
from lab.diagnose.audit.layouts import Layout
from lab.diagnose.audit.options import WAYS
from lab.diagnose.audit.records import Record
from lab.diagnose.audit.seen import Seen
from lab.diagnose.finding import Finding

PATIENCE = 1000
"""Steps after which weights would have been averaged if they ever were (local SGD)."""

MANY = 64
"""Numbers that are not equal again, all of them, by chance."""

OFTEN = 3
"""Steps after which weights that stay equal, though gradients differ, do so by no chance."""


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
        self._when_unreduced = Seen(layout, {})
        """The last step at which gradients differed."""
        self._other_data = False
        """Whether equal weights had other gradients at the first step, so other data."""
        self._no_sync: Site | None = None
        self._parted: set[int] = set()
        """Those that were equal at the first step, and differed at the last."""
        self._stay_equal = 0
        """How often weights were equal after steps with gradients that were not."""
        self._other_gradients: int | None = None
        """The first step at which gradients differed, and weights did not."""
        self._copied: tuple[int, int] | None = None
        """Whose weights take the place of all others', and since which step."""
        self._unequal: set[int] = set()
        """Those whose gradients differed at the last step."""
        self._said: set[int] = set()
        self._rounded: dict[int, int] = {}
        """Those said to differ by no more than rounding: the step since which they do."""
        self._now = self._before = Seen(layout, {})
        """What was compared last, and before that."""
        self._other_options: int | None = None
        """The step since which the ranks' optimizers have other options."""

    def compare(self, count: int, records: Mapping[int, Record]) -> list[Finding]:
        """Take what the ranks had before their count-th step."""
        self._exchanged.note(records.values())
        before, self._last = self._last, count
        now = Seen(self._layout, records)
        self._before, self._now = self._now if before else now, now
        self._note_options(count)
        weights = now.differing("parameters") - self._said
        gradients = now.differing("gradients") - self._said
        if before == 0:
            self._apart = set(weights)
            self._other_data = bool(gradients - weights)
        if not (weights or gradients or self._unreduced):
            return []
        # See `nan.NotFinite`: these are not equal to themselves; and `gradients.NotWaitedFor`.
        if now.has_nan() or any(record["unwaited"] for record in records.values()):
            self._said |= set(range(len(self._layout.names)))
            return []
        self._note_averaged(weights)
        for place in self._unreduced.keys() - weights:  # the step may have changed nothing
            del self._unreduced[place]
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
        together = apart & self._now.together(gradients)
        if together := self._beyond_rounding_or_new(together):
            self._note_said(together, 1)
            return [say_apart(self._now, together, self._made)]
        if self._exchanged.allows_differences or not self._are_one:
            return []
        if places := self._updated_by_owners(gradients):
            self._said |= places
            assert self._other_gradients is not None
            return [say_owners_alone(self._now, places, self._other_gradients)]
        unreduced = (self._unreduced.keys() & weights) | (apart & gradients)
        late = self._exchanged.late > 1
        patient = count < PATIENCE or self._are_by_themselves
        if unreduced and (late or not patient or self._should_be_reduced(unreduced)):
            return self._say_unreduced(unreduced)
        fresh = self._beyond_rounding_or_new(weights - self._apart - self._unreduced.keys())
        return self._say_differing(fresh, before) if fresh and self._reduces else []

    def _should_be_reduced(self, places: Collection[int]) -> bool:
        """Whether a wrapper is there to do it, and was not told to leave it out."""
        return all(self._layout.managed[place] for place in places) and self._no_sync is None

    def _updated_by_owners(self, gradients: set[int]) -> set[int]:
        """Those that stay equal, each as one rank makes it by its own gradient.

        Unless gradients are sent to that rank, the others' would then be of no use to anybody.
        """
        if self._reduces or not self._exchanged.updates or self._stay_equal < OFTEN:
            return set()
        return gradients - self._apart

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

    def _note_averaged(self, weights: set[int]) -> None:
        """Whether those that had differed are equal again: nothing but an exchange does that.

        A few numbers may be equal again by chance (Adam's first steps are the learning rate, up or
        down), or may never have differed.
        """
        now, before = self._now, self._before
        again = self._parted - weights
        many = any(math.prod(self._layout.shapes[place]) >= MANY for place in again)
        is_average = bool(again) and (again == self._parted or many)
        if not weights and not again and now.changed(before, self._unreduced):
            self._stay_equal += 1  # made equal after each step, before anybody looks
            is_average = self._stay_equal >= OFTEN
        source = now.copied_from(before)
        if source is not None:
            if is_average and self._copied is None:
                self._copied = source, min(self._unreduced.values(), default=self._last)
        elif self._exchanged.updates and not self._reduces:
            pass  # the optimizer itself makes them equal, which is no average
        elif self._exchanged.copies_now or (is_average and now.may_follow_a_collective(before)):
            self._exchanged.averages = True
        self._parted = weights - self._apart

    def _note_unreduced(self, count: int, gradients: set[int]) -> None:
        fresh = gradients - self._apart - self._said
        if fresh and self._other_gradients is None:
            self._other_gradients = count
        if fresh and len(self._now.records) >= len(self._when_unreduced.records):
            self._when_unreduced = self._now
        for place in fresh:
            self._unreduced.setdefault(place, count)
        for record in self._now.records.values():
            if gradients and record["no_sync"] is not None:
                self._no_sync = record["no_sync"]

    def _note_options(self, count: int) -> None:
        if not self._now.options(self._layout.whole):
            self._other_options = None
        elif self._other_options is None:
            self._other_options = count

    def _beyond_rounding_or_new(self, places: set[int]) -> set[int]:
        """Those that have outgrown rounding since they were told of; else those that were not."""
        rounded = self._rounded.keys()
        return self._now.beyond_rounding(places & rounded) or places - rounded

    def _note_said(self, places: set[int], since: int) -> None:
        if self._now.beyond_rounding(places):
            self._said |= places
        else:
            self._rounded |= dict.fromkeys(places, since)  # it may grow: see again

    def _say_differing(self, places: set[int], before: int) -> list[Finding]:
        rounded = places & self._rounded.keys()
        since = min((self._rounded[place] for place in rounded), default=before)
        self._note_said(places, since)
        # What was set before the step is what it took; else it may have been set between two looks.
        options = self._before.options(places) or self._now.options(places)
        return [say_differing(self._now, places, since, options)]

    def _say_options(self) -> list[Finding]:
        options = [one for one in self._now.options(self._layout.whole) if one.name not in WAYS]
        said = self._said or self._rounded
        if said or self._other_options is None or not options or not self._reduces:
            return []
        return [say_options(self._now, self._other_options, self._last, options)]

    def _say_strangers(self, what: str, how: str) -> list[Finding]:
        return [say_strangers(self._now, self._last, what, how)]

    def _say_unreduced(self, places: Collection[int]) -> list[Finding]:
        places = set(places)
        self._said |= places
        step = min((self._unreduced.pop(place, self._last) for place in places), default=1)
        seen = self._now
        every_rank = len(seen.records) >= len(self._when_unreduced.records)
        if not (every_rank and seen.guilty(places, "gradients")):  # by now all have none
            seen = self._when_unreduced
        if self._copied is not None:
            source, since = self._copied
            return [say_overwritten(seen, places, since, source)]
        return [say_unreduced(seen, places, step, self._apart, self._no_sync)]
