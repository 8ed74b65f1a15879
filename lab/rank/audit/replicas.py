"""What each optimizer's parameters and gradients are at its steps, in a few numbers a tensor.

By these the judges tell whether the ranks train one model: see `lab.diagnose.audit.replicas`.
"""

import math
import weakref
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from .averages import Averages, Shapes, shapes_of
from .buffers import Buffers
from .clipping import Clipping
from .exchange import Exchange
from .held_back import HeldBack
from .hooks import Hooks
from .losses import Losses
from .models import Models, Site, is_part, numbered
from .options import Options, changes, options_of
from .stale import Stale
from .tensors import digests, norms, packed_digests, packed_norms, sums
from .waits import Waits


def install(hooks: Hooks) -> None:
    """Look at the optimizers' parameters before their steps."""
    watch = Replicas(hooks)
    hooks.before_step.append(watch.before_step)
    hooks.recorder.before_close.append(watch.close)


@dataclass
class Layout:
    """What there is to be known of one optimizer's parameters."""

    number: int
    """By the order of the optimizers' first steps."""
    managed: list[frozenset[int]]
    """The ranks over which a wrapper reduces the gradient; none where no wrapper does."""
    parts: list[bool]
    """Whether other ranks hold the rest of it."""
    without_gradient: dict[int, Site | None]
    """Places of those that have never had one, and where they were made."""
    group_name: str | None
    """Of DDP's process group."""
    shapes: Shapes
    """Of those that are trained."""
    steps: int = 0
    began: tuple[int, ...] = ()
    """Which collectives had been before its last step."""
    since: int = 0
    """How many steps it has taken since the last of them."""
    options: Options = field(default_factory=dict)
    """As they were told last."""
    unwaited: bool = False
    """Whether a step has taken gradients that were still on their way."""


class Replicas:
    """Notes the layout of each optimizer once, then digests of its tensors at the due steps."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._recorder = hooks.recorder
        self._models = Models(hooks, self._watch_no_sync)
        self._layouts: weakref.WeakKeyDictionary[Optimizer, Layout] = weakref.WeakKeyDictionary()
        self._all: list[Layout] = []
        self._averages = Averages(hooks)
        self._exchange = Exchange(
            hooks, self._parameters_known, self._models.reduce_now, self._averages
        )
        self._waits = Waits(hooks)
        self._stale = Stale(
            hooks, self._models, lambda: [one for _, one, _ in self._parameters_known()]
        )
        self._held_back = HeldBack(hooks, self._models)
        self._losses = Losses(hooks)
        self._clipping = Clipping(hooks)
        self._buffers = Buffers(hooks)
        self._no_sync: Site | None = None
        self._watched: set[type] = set()

    def before_step(self, optimizer: Optimizer, count: int) -> None:
        """See `Hooks.before_step`."""
        parameters = _parameters(optimizer)
        layout = self._layouts.get(optimizer)
        if layout is None or len(layout.parts) != len(parameters):
            number = len(self._all) if layout is None else layout.number
            layout = self._layouts[optimizer] = self._lay_out(number, parameters, optimizer)
            self._all.append(layout)
        layout.steps = count
        began = self._hooks.counts.moment(layout.group_name)
        layout.since = layout.since + 1 if began == layout.began else 1
        layout.began = began
        if layout.without_gradient:
            layout.without_gradient = {
                place: site
                for place, site in layout.without_gradient.items()
                if parameters[place].grad is None
            }
        if len(layout.without_gradient) == len(parameters):
            self._stale.stepping(optimizer, layout.number, count, parameters)
        layout.unwaited |= self._waits.stepping(count, parameters)
        again = self._exchange.stepped(optimizer)
        self._averages.stepped(layout.number, layout.shapes)
        if again is not None:
            self._recorder.record("again", optimizer=layout.number, count=count, **again)
        if count == 1 or self._recorder.sampling.due(count):
            self._held_back.stepping(layout.number, count, parameters)
            self._note(optimizer, layout, count, parameters)
        self._no_sync = None

    def close(self) -> None:
        """The script has ended: tell which parameters never had a gradient."""
        for layout in self._all:
            self._recorder.record(
                "no-gradient",
                optimizer=layout.number,
                count=layout.steps,
                places=list(layout.without_gradient.items()),
            )
        self._buffers.close()

    def _note(
        self,
        optimizer: Optimizer,
        layout: Layout,
        count: int,
        parameters: list[Tensor],
    ) -> None:
        gradients = [parameter.grad for parameter in parameters]
        before, layout.options = layout.options, options_of(optimizer)
        with torch.no_grad():
            self._losses.forget(count, self._are_finite)
            self._recorder.record(
                "replica",
                optimizer=layout.number,
                count=count,
                moment=[*layout.began, layout.since],
                parameters=packed_digests(digests(parameters)),
                gradients=packed_digests(digests(gradients)),
                parameter_norms=packed_norms(norms(parameters)),
                parameter_sums=packed_norms(sums(parameters)),
                gradient_norms=packed_norms(norms(gradients)),
                exchanged=self._exchange.take(layout.number),
                options=changes(before, layout.options),
                late=self._exchange.late,
                unwaited=layout.unwaited,
                no_sync=self._no_sync,
                bad_loss=self._losses.first_bad(count),
                scaled=self._clipping.scaled(layout.number),
                **self._recorder.site(),
            )
        parts = [p for p, part in zip(parameters, layout.parts, strict=True) if part]
        self._clipping.watch(layout.number, parts)

    def _lay_out(self, number: int, parameters: list[Tensor], optimizer: Optimizer) -> Layout:
        models = self._models.find(parameters)
        of = {identity: model for model in models for identity in model.names}
        identities = [id(parameter) for parameter in parameters]
        names = [of[i].names[i] if i in of else f"parameter {n}" for n, i in enumerate(identities)]
        nobody: frozenset[int] = frozenset()
        managed = [of[i].managed.get(i, nobody) if i in of else nobody for i in identities]
        parts = [
            (i in of and i in of[i].parts) or is_part(names[n], parameters[n])
            for n, i in enumerate(identities)
        ]
        self._buffers.watch(models)
        own = set(identities)
        order = [name for one in models for i, name in one.names.items() if i in own]
        sites = {identity: site for model in models for identity, site in model.sites.items()}
        self._recorder.record(
            "layout",
            optimizer=number,
            kind=type(optimizer).__name__,
            names=names,
            shapes=[list(parameter.shape) for parameter in parameters],
            parts=parts,
            order=None if order == names or len(order) < len(names) else order,
            **numbered(sites, identities),
            managed=[bool(ranks) for ranks in managed],
            group=next((model.group for model in models if model.group is not None), None),
            made=next((model.made for model in models if model.made is not None), None),
            sampler=self._models.uses_sampler,
            together=dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1,
        )
        trained = {n: sites.get(id(p)) for n, p in enumerate(parameters) if p.requires_grad}
        group_name = next((m.group_name for m in models if m.group_name is not None), None)
        shapes = shapes_of([parameter for parameter in parameters if parameter.requires_grad])
        return Layout(number, managed, parts, trained, group_name, shapes)

    def _parameters_known(self) -> list[tuple[Optimizer, Tensor, frozenset[int]]]:
        """Those of all optimizers, and the ranks over which a wrapper reduces the gradient."""
        return [
            (optimizer, parameter, managed)
            for optimizer, layout in list(self._layouts.items())
            for parameter, managed in zip(_parameters(optimizer), layout.managed, strict=False)
        ]

    def _are_finite(self) -> bool:
        """Whether all optimizers' parameters are."""
        return all(map(math.isfinite, norms([one for _, one, _ in self._parameters_known()])))

    def _watch_no_sync(self, wrapper: type[nn.Module]) -> None:
        """Note where the script leaves the synchronisation of gradients out."""
        owner = next(kind for kind in wrapper.__mro__ if "no_sync" in vars(kind))
        if owner not in self._watched:
            self._watched.add(owner)
            self._hooks.wrap(owner, "no_sync", before=self._on_no_sync)

    def _on_no_sync(self, *_: Any, **__: Any) -> None:
        self._no_sync = self._recorder.site()


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
