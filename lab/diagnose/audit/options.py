"""Options of the ranks' optimizers, such as learning rates, that differ for one parameter."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lab.diagnose.words import ranks_in_words

Options = Mapping[tuple[int, str], Any]
"""By the number of the group and the option's name; `params`: how many the group has."""
WAYS = frozenset({"foreach", "fused", "capturable", "differentiable"})
"""To compute the same."""


@dataclass(frozen=True)
class Difference:
    """An option that ranks have other values of."""

    name: str
    values: Mapping[int, Any]
    """By rank; None: it has none."""

    def __str__(self) -> str:
        shown = {rank: _shown(value) for rank, value in sorted(self.values.items())}
        exact = {rank: str(value) for rank, value in sorted(self.values.items())}
        if len(set(shown.values())) < len(set(exact.values())):
            shown = exact
        ranks: dict[str, list[int]] = {}
        for rank, text in shown.items():
            ranks.setdefault(text, []).append(rank)
        told = [f"{text} on {ranks_in_words(each)}" for text, each in list(ranks.items())[:8]]
        several = any(isinstance(value, list) for value in self.values.values())
        return f"{self.name} {'are' if several else 'is'} {', '.join(told)}"


def differences(options: Mapping[int, Options], places: Iterable[int]) -> list[Difference]:
    """What differs between ranks for the first of the parameters of which anything does.

    Args:
        options: of each rank's optimizer.
        places: of the parameters, in the order of the optimizer.
    """
    first, *others = options.values()
    if all(other == first for other in others):
        return []
    for place in sorted(places):
        own = {rank: _of(each, place) for rank, each in options.items()}
        found = [
            Difference(name, {rank: each.get(name) for rank, each in own.items()})
            for name in dict.fromkeys(name for each in own.values() for name in each)
        ]
        found = [one for one in found if len({str(value) for value in one.values.values()}) > 1]
        if found:  # with another optimizer come other options
            return [one for one in found if one.name == "optimizer"] or found
    return []


def after(options: Options, changes: Iterable[tuple[int, str, Any]]) -> Options:
    """What a rank's options are once these have changed."""
    new = {(group, name): value for group, name, value in changes}
    return {**options, **new} if new else options


def _of(options: Options, place: int) -> dict[str, Any]:
    """Those of one parameter."""
    group, beyond = 0, options.get((0, "params"), 0)
    while place >= beyond and (group + 1, "params") in options:
        group += 1
        beyond += options[group, "params"]
    return {name: v for (n, name), v in options.items() if n == group and name != "params"}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return f"({', '.join(map(_shown, value))})"
    return f"{value:.6g}" if type(value) in (int, float) else str(value)
