"""Whether the ranks of a group call the same collectives in the same order."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from lab.diagnose.finding import Finding, Innocent
from lab.diagnose.words import NOBODY_KNOWS, place_in_words, ranks_in_words

PLAIN = frozenset({"all_reduce", "broadcast", "reduce"})
"""Operations that are the same to the script and to the flight recorder."""
KEPT = 4096
"""Collectives of a group that wait for a rank which has not come to them."""


@dataclass(frozen=True)
class Collective:
    """One, as a rank has it."""

    group: str
    ranks: tuple[int, ...]
    """The group's, global."""
    source: str
    """call: by the script; recorder: by PyTorch's flight recorder, whoever called it."""
    op: str
    shape: tuple[int, ...] | None
    """Of what has the same shape on all ranks; None where nothing has to."""
    dtype: str | None
    reduce: str | None
    root: int | None
    file: str | None
    line: int | None
    function: str | None
    text: str | None = None
    """What the script's line says."""

    @property
    def what(self) -> object:
        """Equal on ranks that take part in the same collective."""
        size = None if self.shape is None else prod(self.shape)
        rows = tuple(n for n in self.shape or () if n != 1)
        # Of the same number of elements [4] and [4, 1] are the same, [2, 3] and [3, 2] are not.
        return self.op, size, rows, self.dtype, self.reduce, self.root

    @property
    def bare(self) -> "Collective":
        """What the flight recorder would say of this call."""
        return replace(self, reduce=None, root=None, text=None)

    def __str__(self) -> str:
        shape = "" if self.shape is None else f" {list(self.shape)}".replace(", ", ",")
        reduce = f" {self.reduce}" if self.reduce not in (None, "SUM") else ""
        root = "" if self.root is None else f" root {self.root}"
        dtype = f" {self.dtype}" if self.dtype else ""
        return f"{self.op}{reduce}{shape}{dtype}{root}"


Column = dict[int, tuple[Collective, int]]
"""What each rank has under one number, and at which optimizer step."""
Group = tuple[str, tuple[int, ...]]
Line = tuple[str | None, int | None]
Words = tuple[str | None, str | None, str | None]
"""What a line says, in a function of a file: the branches of an `if` may say the same."""


class Collectives:
    """Compares each group's collectives by their numbers."""

    checks = frozenset({"collectives"})

    def __init__(self, world_size: int) -> None:
        self._known: dict[int, list[Collective]] = {}  # by rank, in the order of their records
        self._columns: dict[Group, dict[tuple[str, int], Column]] = {}
        self._judged: set[Group] = set()  # after the first difference all else differs
        self._suspected: dict[Group, Finding] = {}
        """The first that ranks took part in at different steps, or from lines at which all have
        met before: what ends well may do so."""
        self._met: dict[Group, set[Line]] = {}
        """The lines from which all ranks have called the same collective."""
        self._before: dict[Group, tuple[int, Column]] = {}
        """The newest that all ranks have called, with its number."""
        self._turned: dict[Group, tuple[Finding, tuple[Line | Words, Line | Words]]] = {}
        """Two lines that seem to be in another order; or one was left out, and all is early."""
        self._calls: dict[Group, dict[int, Counter[Line | Words]]] = {}
        """By rank: how often each line has called, and any that says the same."""
        self._reached: dict[Group, dict[int, int]] = {}  # by rank: the highest number

    def feed(self, rank: int, record: Mapping[str, Any]) -> list[Finding]:
        """See `Judge`."""
        known = self._known.setdefault(rank, [])
        for group, ranks, source, op, shape, *rest in record["new"]:
            shape = None if shape is None else tuple(shape)
            known.append(Collective(group, tuple(ranks), source, op, shape, *rest))
        found = []
        for place, number, step in record["seen"]:
            found += self._add(rank, known[place], number, step)
        return found

    def _add(self, rank: int, one: Collective, number: int, step: int) -> list[Finding]:
        group = one.group, one.ranks
        if group in self._judged:
            return []
        reached = self._reached.setdefault(group, dict.fromkeys(one.ranks, 0))
        reached[rank] = max(number, reached.get(rank, 0))
        columns = self._columns.setdefault(group, {})
        column = columns.setdefault((one.source, number), {})
        column[rank] = one, step
        if len(column) == len(one.ranks):
            del columns[one.source, number]
            return self._judge(number, column)
        if len(columns) > KEPT:
            del columns[next(iter(columns))]
        return []

    def close(self) -> list[Finding]:
        """Those that not all ranks came to, or that only some of them called from Python."""
        found = []
        for group, columns in self._columns.items():
            for (source, number), column in columns.items():
                if source == "recorder":  # it may not have been read on a rank that is gone
                    called = columns.get(("call", number), {})
                    calls = {r: one for r, one in called.items() if one[0].op in PLAIN}
                    column = {**{r: (one.bare, step) for r, (one, step) in calls.items()}, **column}
                if group not in self._judged:
                    found += self._judge(number, column)
        for group, suspicion in self._suspected.items():
            if group in self._judged:
                continue
            if group in self._turned:
                turned, lines = self._turned[group]
                missed = self._missed(group, lines)
                suspicion = replace(suspicion, evidence=(*suspicion.evidence, *missed))
                found.append(suspicion if missed else turned)
            elif len(set(self._reached[group].values())) > 1:
                found.append(suspicion)
        return found

    def _judge(self, number: int, column: Column) -> list[Finding]:
        group = next(iter(column.values()))[0].group, next(iter(column.values()))[0].ranks
        kinds: dict[object, list[int]] = {}
        steps: dict[object, list[int]] = {}
        for rank in sorted(column):
            one, step = column[rank]
            kinds.setdefault(one.what, []).append(rank)
            steps.setdefault(step, []).append(rank)
        if len(kinds) > 1:
            self._judged.add(group)
            found = self._say(number, column, kinds)
            if before := self._suspected.get(group):
                found = replace(before, evidence=(*before.evidence, f"later {found.summary}"))
            return [found]
        if turned := self._judge_order(group, number, column):
            self._judged.add(group)
            return [turned]
        # The same line at another step, or lines at which all have met before: a rank has left one
        # out, or has one more; or all is well, since their steps need not be in step (Join,
        # searches that end early).
        if group in self._suspected or any(one.source != "call" for one, _ in column.values()):
            return []  # the step and the line are those of a call
        lines: dict[object, list[int]] = {}
        for rank in sorted(column):
            lines.setdefault(_line(column[rank][0]), []).append(rank)
        met = self._met.setdefault(group, set())
        if len(lines) == 1:
            met |= {_line(column[rank][0]) for rank in column}
        if len(lines) == 1 and len(steps) > 1:
            self._suspected[group] = self._say(number, column, steps)
        elif len(lines) > 1 and met.issuperset(lines):
            self._suspected[group] = self._say(number, column, lines)
        return []

    def _judge_order(self, group: Group, number: int, column: Column) -> Finding | None:
        """Whether some ranks called from two lines in turn what others did the other way round.

        The tensors go together, so that each line gets the other one's without a word.
        """
        if any(one.source != "call" or one.shape is None for one, _ in column.values()):
            return None
        calls = self._calls.setdefault(group, {})
        for rank, (one, _) in column.items():
            calls.setdefault(rank, Counter()).update({_line(one), _words(one)})
        if group in self._turned:
            turned, lines = self._turned[group]
            known_by = _line if len(lines[0]) == 2 else _words
            meet = len({known_by(one) for one, _ in column.values()}) == 1
            return turned if meet and not self._missed(group, lines) else None
        earlier, before = self._before.get(group, (0, column))
        self._before[group] = number, column
        if len({step for each in (before, column) for _, step in each.values()}) > 1:
            return None  # one has left something out, or has one more
        if len({one.what for each in (before, column) for one, _ in each.values()}) > 1:
            return None  # a line would send from another rank there: they send in turn
        by: Callable[[Collective], Line | Words] = _line
        if (orders := _orders(before, column, by)) is None:
            by = _words
            if (orders := _orders(before, column, by)) is None:
                return None
        finding = self._say(earlier, before, orders)
        ranks = finding.ranks if finding.innocent else list(orders.values())[-1]
        one, then = before[ranks[0]][0], column[ranks[0]][0]
        turned = replace(
            finding,
            summary=f"{_call(ranks)} {one}{_at(one)} before that{_at(then)}, and the other ranks "
            "the other way round, so that the tensor of each goes with that of the other: "
            f"#{earlier} and #{number} of {_named(group)}",
        )
        self._suspected.setdefault(group, finding)
        self._turned[group] = turned, (by(one), by(then))
        return None  # until they meet again, or end

    def _missed(self, group: Group, lines: Sequence[Line | Words]) -> list[str]:
        """Which of the lines some ranks have called less often than others."""
        missed = []
        for line in lines:
            ranks: dict[int, list[int]] = {}
            for rank, calls in sorted(self._calls[group].items()):
                ranks.setdefault(calls[line], []).append(rank)
            if len(ranks) > 1:
                each = [f"{n} by {ranks_in_words(those)}" for n, those in sorted(ranks.items())]
                place = f"at {place_in_words(*line)}" if len(line) == 2 else f"of `{line[2]}`"
                missed.append(f"calls {place}: {', '.join(each)}")
        return missed

    @staticmethod
    def _say(number: int, column: Column, kinds: Mapping[object, list[int]]) -> Finding:
        right, wrong, *_ = sorted(kinds.values(), key=lambda ranks: (-len(ranks), ranks[0]))
        # Most are right; where as many are of one mind as of the other, nobody knows who is.
        is_even = len(right) == len(wrong)
        others = sorted(set(column) - set(right))
        ours, step = column[wrong[0]]
        theirs, _ = column[right[0]]
        name = _named((ours.group, ours.ranks))
        if ours.what == theirs.what and _line(ours) == _line(theirs):
            summary = (
                f"{ranks_in_words(others)} and {ranks_in_words(right)} take part in {theirs} "
                f"#{number} of {name} at different steps, {step} and {column[right[0]][1]}: one of "
                "them has left out a collective, or has had one more"
            )
        else:
            summary = (
                f"{_call(others)} {ours}{_at(ours)} as "
                f"collective #{number} of {name}, where {_call(right)} {theirs}"
                f"{_at(theirs)}"
            )
        evidence = [
            f"{ranks_in_words(ranks)}: {column[ranks[0]][0]}{_at(column[ranks[0]][0])}, "
            f"step {column[ranks[0]][1]}"
            for ranks in kinds.values()
        ]
        finding = Finding(
            kind="mismatched-collective",
            severity="error",
            summary=summary,
            ranks=tuple(others),
            step=step,
            file=ours.file,
            line=ours.line,
            function=ours.function,
            innocent=(
                Innocent(tuple(right), f"call {theirs}", theirs.file, theirs.line, theirs.function),
            ),
            evidence=tuple(evidence),
            cure="all ranks of a group have to call the same collectives, in the same order, "
            "with tensors of the same shape and dtype",
        )
        if not is_even:
            return finding
        is_one_place = (ours.file, ours.line) == (theirs.file, theirs.line)
        return replace(
            finding if is_one_place else replace(finding, file=None, line=None, function=None),
            ranks=tuple(sorted(column)),
            innocent=(),
            evidence=(*evidence, NOBODY_KNOWS),
        )


def _call(ranks: Sequence[int]) -> str:
    return f"{ranks_in_words(ranks)} call{'s' * (len(ranks) == 1)}"


def _named(group: Group) -> str:
    name, ranks = group
    return "the default group" if name == "0" else f"the group of {ranks_in_words(ranks)}"


def _line(one: Collective) -> Line:
    return one.file, one.line


def _words(one: Collective) -> Line | Words:
    return (one.file, one.function, one.text) if one.text else _line(one)


def _orders(
    before: Column, column: Column, by: Callable[[Collective], Line | Words]
) -> dict[object, list[int]] | None:
    """The ranks by the order of two calls, if some have made them the other way round."""
    orders: dict[object, list[int]] = {}
    for rank in sorted(column):
        order = by(before[rank][0]), by(column[rank][0])
        orders.setdefault(order, []).append(rank)
    one, then = order  # of the last rank
    if len(orders) != 2 or one == then or (then, one) not in orders:
        return None
    return orders


def _at(one: Collective) -> str:
    place = place_in_words(one.file, one.line)
    return f" at {place}" if place else ""
