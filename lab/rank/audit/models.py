"""Which models a script trains: noticed when they are made, since nobody tells us of them.

Names of parameters, which of them are parts of a whole that other ranks hold the rest of, which
buffers they have, and where the script made them.
"""

import gc
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import FrameType
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler

from .counts import ranks_of
from .hooks import Hooks

WRAPPERS = ("module.", "_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""What wrappers put before a parameter's name."""
SEARCHES = 3
"""How often to look through all objects, which takes a tenth of a second, at most."""
LARGEST_BUFFER = 1 << 20
"""Elements; statistics have far fewer."""

Site = dict[str, Any]


@dataclass
class Model:
    """A module that is no part of another one."""

    made: Site | None
    """Where the script made it."""
    names: dict[int, str] = field(default_factory=dict)
    """Of its parameters, by their identity; without wrappers."""
    sites: dict[int, Site] = field(default_factory=dict)
    """Where the script made the modules that hold the parameters, by these' identity."""
    parts: set[int] = field(default_factory=set)
    """Identities of those of which this rank holds a part (FSDP)."""
    managed: dict[int, frozenset[int]] = field(default_factory=dict)
    """Identities of those whose gradients a wrapper reduces (DDP, FSDP): over which ranks."""
    group: list[int] | None = None
    """The ranks of DDP's process group; None: no DDP, or its group is gone."""
    group_name: str | None = None
    sends_buffers: bool = False
    """Whether a wrapper sends rank 0's buffers to all before each forward."""
    buffers: dict[str, Tensor] = field(default_factory=dict)
    """Those with floats, by name."""
    compiled: bool = False
    """Whether torch.compile has had to do with it."""


class Models:
    """The models of the script, looked for when somebody asks for those of unknown parameters."""

    def __init__(self, hooks: Hooks, on_wrapper: Callable[[type[nn.Module]], None]) -> None:
        """`on_wrapper` gets classes that can leave out reducing the gradients (`no_sync`)."""
        self._on_wrapper = on_wrapper
        self._recorder = hooks.recorder
        self._sites: weakref.WeakKeyDictionary[nn.Module, Site] = weakref.WeakKeyDictionary()
        self._wrappers: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._searches = 0
        self.uses_sampler = False
        """Whether the script has made a DistributedSampler."""
        hooks.wrap(nn.Module, "__init__", after=self._on_init)
        self._wrapped = 0
        hooks.wrap(DistributedDataParallel, "__init__", before=self._on_ddp)
        hooks.wrap(DistributedSampler, "__init__", after=self._on_sampler)

    def _on_sampler(self, *_: Any, **__: Any) -> None:
        self.uses_sampler = True

    def _on_ddp(
        self, _: nn.Module, module: nn.Module, *args: Any, process_group: Any = None, **others: Any
    ) -> None:
        """Tell the order of the parameters, in which they go with those of the other ranks.

        Before it is looked at by DDP, which refuses other shapes.
        """
        if not dist.is_initialized() or others.get("device_mesh") is not None:
            return
        group = process_group or next((g for g in args if isinstance(g, dist.ProcessGroup)), None)
        if (ranks := ranks_of(group)) is None:
            return
        ignored = getattr(module, "_ddp_params_and_buffers_to_ignore", ())
        named = {name: one for name, one in module.named_parameters() if name not in ignored}
        self._wrapped += 1
        self._recorder.record(
            "wrapped",
            number=self._wrapped,
            group=list(ranks),
            names=[plain(name) for name in named],
            shapes=[list(parameter.shape) for parameter in named.values()],
            **numbered(self._sites_in(module), map(id, named.values())),
        )

    def _on_init(self, module: nn.Module, *_: Any, **__: Any) -> None:
        if hasattr(type(module), "no_sync"):
            self._on_wrapper(type(module))
            self._wrappers.add(module)
        self._sites[module] = self._recorder.site(beyond=partial(is_constructor, module))

    def reduce_now(self) -> bool:
        """Whether wrappers reduce the gradients of a backward that begins now: no `no_sync`."""
        return all(getattr(one, "require_backward_grad_sync", True) for one in self._wrappers)

    def all(self) -> list[nn.Module]:
        """Every module, inner ones as well, that has passed through its constructor."""
        return list(self._sites)

    def find(self, parameters: Iterable[Tensor]) -> list[Model]:
        """The models that hold any of the parameters."""
        wanted = {id(parameter) for parameter in parameters}
        found = self._among(list(self._sites), wanted)
        known = {identity for model in found for identity in model.names}
        if wanted <= known or self._searches >= SEARCHES:
            return found
        self._searches += 1  # copies and what was unpickled have not passed through `__init__`
        return self._among([o for o in gc.get_objects() if issubclass(type(o), nn.Module)], wanted)

    def _among(self, modules: list[nn.Module], wanted: set[int]) -> list[Model]:
        inner = {id(child) for module in modules for child in _children(module)}
        models = [self._describe(module) for module in modules if id(module) not in inner]
        return [model for model in models if wanted & model.names.keys()]

    def _describe(self, root: nn.Module) -> Model:
        own = next((m for m in root.modules() if m in self._sites and not is_wrapper(m)), None)
        model = Model(None if own is None else self._sites[own])
        for name, parameter in root.named_parameters():
            model.names[id(parameter)] = plain(name)
            if is_part(name, parameter):
                model.parts.add(id(parameter))
                model.managed[id(parameter)] = _holders(parameter)
        for name, buffer in root.named_buffers():
            if buffer.is_floating_point() and buffer.numel() <= LARGEST_BUFFER:
                model.buffers[plain(name)] = buffer
        model.sites = self._sites_in(root)
        for module in root.modules():
            model.compiled |= type(module).__name__ == "OptimizedModule"
            if _is_ddp(module):
                ignored = getattr(module, "parameters_to_ignore", ())
                wrapped: Any = module.module
                inside = wrapped.named_parameters()
                group = getattr(module, "process_group", None)
                ranks = ranks_of(group)
                if ranks is None:
                    continue  # what is left of it reduces nothing any more
                model.group = list(ranks)
                model.group_name = getattr(group, "group_name", None)
                over = frozenset(ranks)
                model.managed |= {id(p): over for name, p in inside if name not in ignored}
                model.sends_buffers = bool(getattr(module, "broadcast_buffers", False))
        return model

    def _sites_in(self, root: nn.Module) -> dict[int, Site]:
        """Where the script made the modules that hold the parameters, by these' identity."""
        return {
            id(parameter): self._sites[module]
            for module in root.modules()
            if module in self._sites
            for parameter in module.parameters(recurse=False)
        }


def numbered(sites: Mapping[int, Site], identities: Iterable[int]) -> dict[str, list[Any]]:
    """Where parameters were made, each line once: `sites`, and for each its number, `built`."""
    built = [sites.get(identity) for identity in identities]
    lines = {tuple((site or {}).values()): site for site in built}
    numbers = {line: n for n, line in enumerate(lines)}
    return {
        "sites": list(lines.values()),
        "built": [numbers[tuple((site or {}).values())] for site in built],
    }


def _children(module: nn.Module) -> Iterator[nn.Module]:
    # Not `children()`: a module that is half made, or taken apart, has not what that reads.
    for child in (module.__dict__.get("_modules") or {}).values():
        if child is not None:
            yield child


def is_wrapper(module: nn.Module) -> bool:
    names = ("OptimizedModule", "FullyShardedDataParallel", "CheckpointWrapper")
    return _is_ddp(module) or type(module).__name__ in names


def _is_ddp(module: nn.Module) -> bool:
    """Torch's, or lab's own, by whatever name it was imported."""
    return isinstance(module, DistributedDataParallel) or (
        type(module).__name__ == "DistributedDataParallel" and hasattr(module, "no_sync")
    )


def is_part(name: str, parameter: Tensor) -> bool:
    """Whether other ranks hold the rest of it: FSDP of torch (both) and of lab, DTensor."""
    return (
        "_fsdp_wrapped_module" in name
        or "_flat_param" in name
        or hasattr(parameter, "_fsdp_unit")
        or hasattr(parameter, "_local_tensor")
    )


def _holders(part: Tensor) -> frozenset[int]:
    """The ranks that hold parts of a parameter: of a DTensor's mesh, else any may."""
    mesh = getattr(part, "device_mesh", None)
    if mesh is not None:
        return frozenset(mesh.mesh.flatten().tolist())
    return frozenset(range(dist.get_world_size() if dist.is_initialized() else 1))


def plain(name: str) -> str:
    """Without what wrappers put before it."""
    for wrapper in WRAPPERS:
        name = f".{name}".replace(f".{wrapper}", ".")[1:]
    return name


def is_constructor(made: object, frame: FrameType) -> bool:
    """Whether a frame is the object's own `__init__`: whoever called it is of interest."""
    return frame.f_code.co_name == "__init__" and frame.f_locals.get("self") is made
