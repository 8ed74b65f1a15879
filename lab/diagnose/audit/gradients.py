"""Gradients that are summed twice, clipped by the norm of a part, or never there."""

from collections.abc import Mapping
from typing import Any

from lab.diagnose.audit.by_line import ByLine
from lab.diagnose.audit.columns import Columns
from lab.diagnose.audit.layouts import Layouts, listed
from lab.diagnose.audit.records import Record, line_of
from lab.diagnose.finding import Finding, Severity
from lab.diagnose.words import place_in_words, ranks_in_words

TOLERANCE = 1e-2
"""Relative: factors of clipping that differ by more are not the same."""


class ReducedTwice(ByLine):
    """Takes what each rank has seen by itself: a sum of gradients that had been summed."""

    checks = frozenset({"again"})

    def _say(self, ranks: Mapping[int, Record]) -> Finding:
        guilty = tuple(sorted(ranks))
        record = ranks[guilty[0]]
        factor = max(abs(each["factor"]) for each in ranks.values())
        harmless = abs(factor - 1) < TOLERANCE
        effect = "which only costs time" if harmless else f"which makes them {factor:.3g} times"
        severity: Severity = "warning" if harmless else "error"
        larger = "" if harmless else " as large"
        return Finding(
            "gradients-reduced-twice",
            severity,
            f"{ranks_in_words(guilty)} put gradients together that were the same on all ranks "
            f"already, {effect}{larger}",
            ranks=guilty,
            step=record["count"],
            **line_of(record),
            evidence=("they had been summed since the last backward, or by the model's wrapper",),
            cure="leave the second out: DistributedDataParallel averages gradients in backward",
        )


class NotWaitedFor(ByLine):
    """Takes what each rank has seen by itself: a step before its gradients had come."""

    checks = frozenset({"unwaited"})

    def _say(self, ranks: Mapping[int, Record]) -> Finding:
        guilty = tuple(sorted(ranks))
        record = ranks[guilty[0]]
        verb = "steps" if len(guilty) == 1 else "step"
        told = [f"{ranks[r]['under_way']} of {ranks[r]['all']} on rank {r}" for r in guilty]
        return Finding(
            "gradients-not-reduced",
            "error",
            f"{ranks_in_words(guilty)} {verb} without waiting for the all-reduces of gradients, "
            "which go on meanwhile",
            ranks=guilty,
            step=record["count"],
            **line_of(record),
            evidence=(
                f"at step {record['count']} nobody had called wait() on them; still under way "
                f"were {', '.join(told[:8])}",
            ),
            cure="keep what all_reduce(..., async_op=True) returns, and call wait() on each before "
            "the optimizer's step",
        )


class LocalNorm:
    """Compares by what the ranks have scaled their parts of the same gradients."""

    checks = frozenset({"replica"})

    def __init__(self, world_size: int) -> None:
        self._steps: Columns[tuple[int, int]] = Columns(world_size)
        self._found = False

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        if record["scaled"] is None or self._found:
            return []
        place = record["optimizer"], record["count"]
        ranks = self._steps.add(place, rank, record["scaled"])
        if ranks is None:
            return []
        factors = {rank: scaled["by"] for rank, scaled in sorted(ranks.items())}
        if max(factors.values()) - min(factors.values()) <= TOLERANCE * max(factors.values()):
            return []
        self._found = True
        scaled = ranks[0]
        shown = ", ".join(f"{by:.4g} on rank {rank}" for rank, by in list(factors.items())[:8])
        return [
            Finding(
                "local-norm-clipping",
                "error",
                f"{ranks_in_words(factors)} scale their parts of the gradients by different "
                "factors: each clips by the norm of its own part",
                ranks=tuple(factors),
                step=record["count"],
                **line_of(scaled),
                evidence=(f"between backward and step gradients were multiplied by {shown}",),
                cure="take the norm over all ranks: model.clip_grad_norm_ of FSDP (torch's first "
                "and lab's), or torch.nn.utils.clip_grad_norm_ with fully_shard's parameters as "
                "they are",
            )
        ]

    def close(self) -> list[Finding]:
        """See `Judge`."""
        return []


class NoGradient:
    """Names parameters that an optimizer holds and that never had a gradient."""

    checks = frozenset({"layout", "no-gradient", "stale"})

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._layouts = Layouts()
        self._missing: dict[tuple[int, str], dict[int, Any]] = {}
        self._ranks: dict[int, set[int]] = {}
        self._steps: dict[int, int] = {}
        self._stale: dict[tuple[int, int], Record] = {}
        """By optimizer and rank: those that hold none of what is trained."""
        self._holding_none: dict[tuple[Any, Any], dict[int, Record]] = {}
        """By line and rank: the same, where no gradient came to the end."""

    def feed(self, rank: int, record: Record) -> list[Finding]:
        """See `Judge`."""
        if record["check"] == "layout":
            self._layouts.feed(rank, record)
            return []
        optimizer = record["optimizer"]
        if record["check"] == "stale":
            self._stale[optimizer, rank] = record
            return []
        layout = self._layouts.of(optimizer, rank)
        if layout is None:
            return []
        if len(record["places"]) == len(layout.names):
            stale = self._stale.get((optimizer, rank))
            if stale is not None:
                ranks = self._holding_none.setdefault((stale["file"], stale["line"]), {})
                ranks[rank] = {**stale, "count": record["count"], "all": len(layout.names)}
            return []  # else the optimizer takes gradients from elsewhere
        self._ranks.setdefault(optimizer, set()).add(rank)
        self._steps[optimizer] = max(self._steps.get(optimizer, 0), record["count"])
        for place, site in record["places"]:
            self._missing.setdefault((optimizer, layout.names[place]), {})[rank] = site
        return []

    def close(self) -> list[Finding]:
        """See `Judge`."""
        together: dict[tuple[int, tuple[int, ...], Any, Any], list[str]] = {}
        sites: dict[object, Any] = {}
        for (optimizer, name), ranks in self._missing.items():
            layout = self._layouts.of(optimizer, min(ranks))
            assert layout is not None
            if layout.parts[layout.names.index(name)] and ranks.keys() != self._ranks[optimizer]:
                continue  # a rank may hold nothing of it
            site = next(iter(ranks.values())) or {"file": None, "line": None, "function": None}
            key = optimizer, tuple(sorted(ranks)), site["file"], site["line"]
            together.setdefault(key, []).append(name)
            sites[key] = site
        said = [self._say(key[0], key[1], names, sites[key]) for key, names in together.items()]
        return said + [_say_holding_none(ranks) for ranks in self._holding_none.values()]

    def _say(
        self, optimizer: int, ranks: tuple[int, ...], names: list[str], site: Mapping[str, Any]
    ) -> Finding:
        steps = self._steps[optimizer]
        everybody = set(ranks) == self._ranks[optimizer]
        where = (
            "on no rank" if everybody else f"on {ranks_in_words(ranks)} never, on others they do"
        )
        return Finding(
            "no-gradient",
            "warning" if everybody else "error",
            f"{listed(names)} get gradients {where}, in {steps} step{'s' * (steps != 1)}",
            ranks=ranks,
            step=steps,
            **line_of(site),
            evidence=("they are in the optimizer, and require gradients",),
            cure="use them in forward, freeze them (requires_grad_(False)), or take them out",
        )


def _say_holding_none(ranks: Mapping[int, Record]) -> Finding:
    record = ranks[min(ranks)]
    where = place_in_words(record["file"], record["line"])
    return Finding(
        "no-gradient",
        "error",
        f"the optimizer{f' made at {where}' if where else ''} holds none of the parameters that "
        f"are trained: it has made {record['count']} steps, and none of its {record['all']} ever "
        "had a gradient",
        ranks=tuple(sorted(ranks)),
        step=1,
        **line_of(record),
        evidence=("a model whose parameters have the same shapes gets gradients, and no step",),
        cure="make the optimizer once the model is as it will be trained, after fully_shard, "
        "copies and wrappers, from that model's parameters()",
    )
