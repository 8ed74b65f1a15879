"""What buffers (the statistics of BatchNorm) are where it matters: when a model is evaluated.

During training each rank's statistics are its own, which does no harm.
"""

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from .hooks import Hooks
from .models import Model, Site
from .tensors import digests, packed_digests


class Buffers:
    """Notes digests of the buffers at each first forward in evaluation, and at the end."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._recorder = hooks.recorder
        self._buffers: dict[str, Tensor] = {}  # small, and so kept to the end
        self._evaluations = 0
        self._compiled = False
        self._awaited: weakref.WeakKeyDictionary[nn.Module, Site] = weakref.WeakKeyDictionary()
        """Modules that are to be evaluated, and where `eval` was called."""
        self._listening: RemovableHandle | None = None
        hooks.wrap(nn.Module, "eval", before=self._on_eval)

    def watch(self, models: Sequence[Model]) -> None:
        """Take the buffers of models, but of those whose wrapper sends rank 0's to all."""
        new = {
            name: buffer
            for model in models
            if not model.sends_buffers
            for name, buffer in model.buffers.items()
            if name not in self._buffers
        }
        self._buffers.update(new)
        self._compiled = self._compiled or any(model.compiled for model in models)
        if new:
            self._record("begin", {})

    def close(self) -> None:
        """The script has ended."""
        if self._buffers:
            self._record("end", {})

    def _on_eval(self, module: nn.Module) -> None:
        own = {id(buffer) for buffer in self._buffers.values()}
        if own and any(id(buffer) in own for buffer in module.buffers()):
            self._hooks.tell([self._expect_forward], module, self._recorder.site())

    def _expect_forward(self, module: nn.Module, site: Site) -> None:
        """Record when the module is called: `eval` alone does not mean that this rank evaluates."""
        if not module.training:
            return  # it was evaluated before, and not trained since
        if self._compiled:  # a hook would have it compiled again
            self._on_evaluation(site)
            return

        wrapped = getattr(module, "module", None)  # DDP's; scripts call either
        for one in (module, wrapped):
            if isinstance(one, nn.Module):
                self._awaited[one] = site
        if self._listening is None:  # to all modules: who saves this one would save its hook
            self._listening = register_module_forward_pre_hook(self._on_forward)

    def _on_forward(self, module: nn.Module, _: Any) -> None:
        if module in self._awaited:
            self._hooks.tell([self._on_awaited], module)

    def _on_awaited(self, module: nn.Module) -> None:
        site = self._awaited[module]
        for one in [one for one, other in self._awaited.items() if other is site]:
            del self._awaited[one]
        if not self._awaited and self._listening is not None:
            self._listening.remove()
            self._listening = None
        if not module.training:
            self._on_evaluation(site)

    def _on_evaluation(self, site: Site) -> None:
        self._evaluations += 1
        self._record("evaluation", site)

    def _record(self, when: str, site: Site) -> None:
        self._recorder.record(
            "buffers",
            when=when,
            evaluation=self._evaluations,
            names=list(self._buffers),
            digests=packed_digests(digests(list(self._buffers.values()))),
            **site,
        )
