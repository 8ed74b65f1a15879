"""Whether a rank trains modules in evaluation mode that others train in training mode."""

from collections.abc import Mapping
from typing import Any

from lab.diagnose.audit.columns import Column, Columns
from lab.diagnose.audit.layouts import listed, minority
from lab.diagnose.audit.records import Record, line_of
from lab.diagnose.finding import Finding
from lab.diagnose.words import ranks_in_words

ENOUGH = 3
"""Steps in a row; two, where a run has no more."""

Model = tuple[tuple[tuple[str, str], ...], tuple[int, ...]]
"""Names and classes of the modules of a model that act otherwise in training; and its ranks."""


class Modes:
    """Compares the ranks that train equal weights."""

    checks = frozenset({"modes"})

    def __init__(self, world_size: int) -> None:
        self._known: dict[tuple[int, int], Mapping[str, Any]] = {}
        """By rank and number: the modules of a model with their modes."""
        self._steps: Columns[tuple[int, int]] = Columns(world_size)
        self._equal: dict[Model, frozenset[str]] = {}
        """By model: the modules that were in evaluation on all ranks when all had the same."""
        self._apart: dict[Model, list[Column]] = {}
        """The first steps since then."""

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        if record["new"] is not None:
            self._known[rank, record["state"]] = record["new"]
        column = self._steps.add((record["step"], record["number"]), rank, record)
        found = []
        for model, ranks in self._replicas(column or {}).items():
            evaluating = {rank: self._evaluating(rank, one) for rank, one in ranks.items()}
            if len(set(evaluating.values())) == 1:
                self._equal[model] = next(iter(evaluating.values()))
                self._apart.pop(model, None)
                continue
            apart = self._apart.setdefault(model, [])
            if len(apart) < ENOUGH:
                apart.append(ranks)
                if len(apart) == ENOUGH:
                    found.append(self._say(model, apart))
        return found

    def close(self) -> list[Finding]:
        """What a short run has shown."""
        short = {model: each for model, each in self._apart.items() if 1 < len(each) < ENOUGH}
        return [self._say(model, each) for model, each in short.items()]

    def _replicas(self, column: Column) -> dict[Model, Column]:
        """The ranks of a step that train one model."""
        models: dict[object, tuple[tuple[tuple[str, str], ...], Column]] = {}
        for rank, one in sorted(column.items()):
            modules = self._known[rank, one["state"]]["modules"]
            names = tuple((name, kind) for name, kind, _ in modules)
            models.setdefault((names, one["weights"]), (names, {}))[1][rank] = one
        return {(names, tuple(own)): own for names, own in models.values() if len(own) > 1}

    def _evaluating(self, rank: int, record: Record) -> frozenset[str]:
        modules = self._known[rank, record["state"]]["modules"]
        return frozenset(_named(name, kind) for name, kind, trains in modules if not trains)

    def _say(self, model: Model, apart: list[Column]) -> Finding:
        first = apart[0]
        evaluating = {rank: self._evaluating(rank, one) for rank, one in first.items()}
        guilty = self._guilty(model, evaluating)
        one, other = guilty[0], next(rank for rank in first if rank not in guilty)
        trains = not evaluating[one] - evaluating[other]
        names = evaluating[one] ^ evaluating[other]
        modules = self._known[one, first[one]["state"]]["modules"]
        order = [_named(name, kind) for name, kind, _ in modules]
        what = listed([name for name in order if name in names])
        how, others = ("training", "evaluation") if trains else ("evaluation", "training")
        step = first[one]["count"]
        at = self._known[one, first[one]["state"]]["evaluated"]
        verb = "trains" if len(guilty) == 1 else "train"
        return Finding(
            "training-mode-differs",
            "error",
            f"{ranks_in_words(guilty)} {verb} with {what} in {how} mode since step {step}; on "
            f"{ranks_in_words([rank for rank in first if rank not in guilty])} in {others} mode",
            ranks=guilty,
            step=step,
            **line_of(first[one] if trains or at is None else at),
            evidence=(
                f"so it was when the model was called in {len(apart)} steps that were looked at, "
                "one after the other; dropout and BatchNorm compute something else in each mode",
            ),
            cure="set the modes on all ranks alike: train() on the whole model undoes eval() of a "
            "part"
            if trains
            else "call train() on the model after each evaluation, on the rank that evaluates, too",
        )

    def _guilty(self, model: Model, evaluating: Mapping[int, frozenset[str]]) -> tuple[int, ...]:
        """Those that have changed; else those unlike most; else those that evaluate more."""
        everybody = set(evaluating)
        if model in self._equal:
            changed = {r for r, names in evaluating.items() if names != self._equal[model]}
            if changed and changed != everybody:
                return tuple(sorted(changed))
        unlike = set(minority(evaluating))
        if unlike != everybody:
            return tuple(sorted(unlike))
        least = min(map(len, evaluating.values()))
        return tuple(sorted(r for r, names in evaluating.items() if len(names) > least)) or (
            max(everybody),
        )


def _named(name: str, kind: str) -> str:
    """`features.1 (BatchNorm1d)`."""
    return f"{name} ({kind})" if name else kind
