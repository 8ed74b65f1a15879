"""A sharded module outside of training: names, whole parameters, state dicts.

The base of FullyShardedDataParallel, which trains it. Method names are torch's
(torch/distributed/fsdp/fully_sharded_data_parallel.py).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lab.parallel.fsdp_state import (
    StateDictSettings,
    cut_optim_state,
    full_or_sharded,
    named_optim_state,
    with_own_parts,
)
from lab.parallel.fsdp_unit import Unit
from lab.parallel.fsdp_wrap import clean_name
from lab.parallel.meter import Meter


class ShardedModule(nn.Module):
    """A wrapped module with a unit of sharded parameters."""

    _fsdp_wrapped_module: nn.Module
    _unit: Unit
    process_group: dist.ProcessGroup | None

    def __init__(self) -> None:
        """The rest is the constructor's of FullyShardedDataParallel."""
        super().__init__()
        self.state_dict_settings = StateDictSettings()
        # State dicts have the bare model's keys, also where it is inside a plain module.
        nn.Module.register_load_state_dict_pre_hook(self, _before_load)
        self.register_load_state_dict_post_hook(_after_load)  # type: ignore[no-untyped-call]  # torch's

    @property
    def module(self) -> nn.Module:
        """The module that was wrapped."""
        return self._fsdp_wrapped_module

    @property
    def meter(self) -> Meter:
        """Bytes sent, and full parameters and gradients held, by this rank; with inner units."""
        return self._unit.meter

    def shard_bytes(self) -> int:
        """Bytes of this rank's parts of the parameters, padding included; with inner units."""
        return sum(flat.shard.nbytes for m in self.fsdp_modules(self) for flat in m._unit.flats)

    # What users see of the model.

    @staticmethod
    def fsdp_modules(module: nn.Module, root_only: bool = False) -> list[Any]:
        """The wrapped modules in a module, itself among them, outer ones first.

        Args:
            module: any.
            root_only: only those that are not inside another.
        """
        found = [m for m in module.modules() if isinstance(m, ShardedModule)]
        if root_only:
            inside = {inner for m in found for inner in m.module.modules()}
            found = [m for m in found if m not in inside]
        return found

    @staticmethod
    @contextmanager
    def summon_full_params(
        module: nn.Module,
        recurse: bool = True,
        writeback: bool = True,
        rank0_only: bool = False,
        offload_to_cpu: bool = False,
        with_grads: bool = False,
    ) -> Iterator[None]:
        """Have all parameters whole inside, in their own shapes and dtypes. A collective.

        Args:
            module: any, with wrapped modules in it.
            recurse: False: only the module's own unit.
            writeback: keep changes of parameters; gradients are only to be read.
            rank0_only: other ranks keep seeing their parts. Not with `writeback`.
            offload_to_cpu: for scripts written for torch. Whole parameters are where they compute.
            with_grads: gradients, too.

        Raises:
            ValueError: `rank0_only` with `writeback`: the other ranks would not learn of changes.
        """
        del offload_to_cpu
        if rank0_only and writeback:
            raise ValueError("rank0_only=True needs writeback=False: other ranks see no change")
        models = ShardedModule.fsdp_modules(module)
        units = [m._unit for m in (models if recurse else models[:1])]
        try:
            for m, unit in zip(models, units, strict=False):
                unit.show_whole(gather=True, gradients=with_grads)
                if rank0_only and dist.get_rank(m.process_group) != 0:
                    unit.show_sharded()
            yield
            if writeback:
                for unit in units:
                    unit.write_back()
        finally:
            for unit in units:
                unit.show_sharded()

    def apply(self, fn: Callable[[nn.Module], Any]) -> Any:
        """Call `fn` on each module inside, as torch does, with whole parameters. A collective."""
        if self._unit.is_whole:  # by the apply of a unit around this one
            return super().apply(fn)
        with self.summon_full_params(self):
            return super().apply(fn)

    def named_parameters(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """As the bare model names them."""
        for name, parameter in super().named_parameters(*args, **kwargs):
            yield clean_name(name), parameter

    def named_buffers(self, *args: Any, **kwargs: Any) -> Iterator[tuple[str, Tensor]]:
        """As the bare model names them."""
        for name, buffer in super().named_buffers(*args, **kwargs):
            yield clean_name(name), buffer

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "_fsdp_wrapped_module":
                raise
            return getattr(self._fsdp_wrapped_module, name)

    def __getitem__(self, key: Any) -> Any:
        return self._fsdp_wrapped_module[key]  # type: ignore[index]  # of a container

    def __getstate__(self) -> Any:
        raise TypeError(
            "a FullyShardedDataParallel cannot be copied or pickled: save its state_dict()"
        )

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """What `to`, `float`, `cuda` and their like do: refused if it would change parameters."""
        for flat in self._unit.flats:
            probe = fn(flat.shard[:0])
            if probe.dtype != flat.shard.dtype or probe.device != flat.shard.device:
                raise ValueError(
                    f"the shards are {flat.shard.dtype} on {flat.shard.device} and stay so: "
                    "convert or move the model before it is wrapped, or pass device_id"
                )
        return super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch's

    # State dicts: see fsdp_state.py.

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The bare model's state, whole unless `state_dict_type` says otherwise. A collective.

        `load_state_dict` takes a whole one on any number of ranks, the same on all.
        """
        if args:
            raise TypeError("state_dict takes destination and prefix by name")
        settings = self.state_dict_settings
        destination = kwargs.get("destination")
        destination = {} if destination is None else destination
        before = set(destination)
        if self._unit.is_whole:
            raise RuntimeError("state_dict gathers by itself: call it outside summon_full_params")
        try:
            if not settings.sharded:
                self._unit.show_whole(gather=True)
            self.module.state_dict(
                destination=destination, prefix=kwargs.get("prefix", ""), keep_vars=True
            )
        finally:
            self._unit.show_sharded()
        added = {key: value for key, value in destination.items() if key not in before}
        for key in added:
            del destination[key]
        if not settings.is_left_out(self.process_group):
            destination.update(full_or_sharded(added, self._unit, settings))
        return destination

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Load a full state dict, the same on all ranks, or this rank's sharded one."""
        try:
            return super().load_state_dict(*args, **kwargs)
        except RuntimeError as error:
            raise RuntimeError(clean_name(str(error))) from None
        finally:
            for m in self.fsdp_modules(self):
                m._unit.show_sharded()

    @staticmethod
    def set_state_dict_type(
        module: nn.Module,
        state_dict_type: Any,
        state_dict_config: Any = None,
        optim_state_dict_config: Any = None,
    ) -> StateDictSettings:
        """Choose what `state_dict` and `optim_state_dict` give from now on; the choice before.

        Args:
            module: any, with wrapped modules in it.
            state_dict_type: FULL_STATE_DICT or SHARDED_STATE_DICT.
            state_dict_config: `offload_to_cpu`, and for full ones `rank0_only`.
            optim_state_dict_config: the same for the optimiser's.

        Raises:
            ValueError: another type, or nothing in the module is wrapped.
        """
        before = ShardedModule.get_state_dict_type(module)
        settings = StateDictSettings.of(state_dict_type, state_dict_config, optim_state_dict_config)
        for m in ShardedModule.fsdp_modules(module):
            m.state_dict_settings = settings
        return before

    @staticmethod
    def get_state_dict_type(module: nn.Module) -> StateDictSettings:
        """The present choice."""
        models = ShardedModule.fsdp_modules(module)
        if not models:
            raise ValueError("no module in it is wrapped in FullyShardedDataParallel")
        settings: StateDictSettings = models[0].state_dict_settings
        return settings

    @staticmethod
    @contextmanager
    def state_dict_type(
        module: nn.Module,
        state_dict_type: Any,
        state_dict_config: Any = None,
        optim_state_dict_config: Any = None,
    ) -> Iterator[None]:
        """`set_state_dict_type` for the time inside."""
        before = ShardedModule.set_state_dict_type(
            module, state_dict_type, state_dict_config, optim_state_dict_config
        )
        try:
            yield
        finally:
            for m in ShardedModule.fsdp_modules(module):
                m.state_dict_settings = before

    @staticmethod
    def optim_state_dict(model: nn.Module, optim: torch.optim.Optimizer) -> dict[str, Any]:
        """An optimiser's state by names of parameters, whole or sharded. A collective.

        Returns:
            {"state": {name: {...}}, "param_groups": [{"params": [name, ...], ...}]}, as torch's.
        """
        settings = ShardedModule.get_state_dict_type(model)
        state = named_optim_state(_units(model), _names(model), optim, settings)
        group = ShardedModule.fsdp_modules(model)[0].process_group
        return {} if settings.is_left_out(group, optim=True) else state

    @staticmethod
    def optim_state_dict_to_load(
        model: nn.Module, optim: torch.optim.Optimizer, optim_state_dict: dict[str, Any]
    ) -> dict[str, Any]:
        """This rank's part of such a state, for `optim.load_state_dict`.

        Raises:
            ValueError: it knows nothing of a parameter, or is of another number of ranks' parts.
        """
        return cut_optim_state(_units(model), _names(model), optim, optim_state_dict)


def _before_load(model: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    with_own_parts(state, prefix, model._unit)
    for key in [key for key in state if key.startswith(prefix)]:
        state[f"{prefix}_fsdp_wrapped_module.{key[len(prefix) :]}"] = state.pop(key)
    model._unit.show_whole(gather=False)


def _after_load(model: Any, incompatible: Any) -> None:
    model._unit.write_back()
    model._unit.show_sharded()
    for keys in (incompatible.missing_keys, incompatible.unexpected_keys):
        keys[:] = map(clean_name, keys)


def _units(model: nn.Module) -> list[Unit]:
    return [m._unit for m in ShardedModule.fsdp_modules(model)]


def _names(model: nn.Module) -> dict[int, str]:
    """Of all parameters as the optimiser has them, by id."""
    return {id(parameter): clean_name(name) for name, parameter in model.named_parameters()}
