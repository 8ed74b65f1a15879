"""What becomes of a model when it is wrapped: which modules are units, which parameter is whose."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lab.parallel.flat_parameter import Slot
from lab.parallel.fsdp_options import MixedPrecision
from lab.parallel.fsdp_unit import SHARDED_IN
from lab.parallel.layout import dense_stride
from lab.parallel.replicas import broadcast_, check_replicas, layout_of

PREFIXES = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
"""Of wrappers, in names of parameters that should be the bare model's."""


def clean_name(name: str) -> str:
    """A name as the bare model has it."""
    for prefix in PREFIXES:
        name = name.replace(prefix, "")
    return name


# Policies.


def units_by_policy(
    root: nn.Module, policy: Any, ignored: Collection[nn.Module]
) -> dict[nn.Module, dict[str, Any]]:
    """The modules that a policy of torch.distributed.fsdp.wrap wants wrapped, with own options.

    Args:
        root: itself never among them.
        policy: ModuleWrapPolicy, CustomPolicy, or a callable like `size_based_auto_wrap_policy`.
        ignored: modules to leave out.
    """
    if hasattr(policy, "_run_policy"):
        chosen: dict[nn.Module, dict[str, Any]] = policy._run_policy(root, set(ignored), {})
        return {module: options for module, options in chosen.items() if module is not root}
    chosen = {}
    seen = {root}

    def ask(module: nn.Module) -> int:
        """Elements that are in units afterwards."""
        own = sum(parameter.numel() for parameter in module.parameters())
        if not policy(module=module, recurse=True, nonwrapped_numel=own):
            return 0
        wrapped = 0
        for child in module.children():
            if child not in seen and child not in ignored:
                seen.add(child)
                wrapped += ask(child)
        rest = own - wrapped
        if module is not root and policy(module=module, recurse=False, nonwrapped_numel=rest):
            chosen[module] = {}
            return own
        return wrapped

    ask(root)
    return chosen


def wrap_inside(
    root: nn.Module,
    chosen: dict[nn.Module, dict[str, Any]],
    wrap: Callable[[nn.Module, dict[str, Any]], nn.Module],
) -> None:
    """Replace the chosen modules inside `root` by what `wrap` makes of them, inner ones first.

    Raises:
        ValueError: a chosen one contains, or is, what is wrapped already.
    """
    wrapped: dict[nn.Module, nn.Module] = {}

    def visit(parent: nn.Module) -> None:
        for name, child in list(parent._modules.items()):
            if child is None:
                continue
            if child not in wrapped:
                visit(child)
                wrapped[child] = wrap(child, chosen[child]) if child in chosen else child
            if wrapped[child] is not child:
                setattr(parent, name, wrapped[child])

    visit(root)


# Parameters.


def own_modules(
    module: nn.Module, stops: Callable[[nn.Module], bool], prefix: str = ""
) -> Iterator[tuple[str, nn.Module]]:
    """The module and those inside it, with names, less where it stops, in order of registration."""
    seen: set[nn.Module] = set()

    def walk(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
        if module in seen or stops(module):
            return
        seen.add(module)
        yield prefix, module
        for name, child in module._modules.items():
            if child is not None:
                yield from walk(child, f"{prefix}{name}.")

    yield from walk(module, prefix)


def slots_of(modules: Iterable[tuple[str, nn.Module]], ignored: Collection[int]) -> list[Slot]:
    """A place for each parameter that these modules own, tied ones once.

    Args:
        modules: with prefixes of names.
        ignored: ids of parameters to leave out.

    Raises:
        ValueError: a parameter belongs to another unit, or has no shape yet.
        TypeError: one needs gradients and is complex.
    """
    slots: dict[int, Slot] = {}
    for prefix, owner in modules:
        for name, parameter in owner._parameters.items():
            if parameter is None or id(parameter) in ignored:
                continue
            full_name = clean_name(prefix + name)
            if id(parameter) in slots:
                slots[id(parameter)].owners.append((owner, name))
                slots[id(parameter)].aliases.append(full_name)
                continue
            _check(full_name, parameter)
            slots[id(parameter)] = Slot(
                name=full_name,
                owners=[(owner, name)],
                shape=parameter.shape,
                stride=dense_stride(parameter),
                start=0,
                sharded=parameter,
            )
    return list(slots.values())


def _check(name: str, parameter: nn.Parameter) -> None:
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise ValueError(f"{name} has no shape yet: run a forward of the lazy module first")
    if parameter.requires_grad and parameter.is_complex():
        raise TypeError(
            f"{name} is complex, and the mean is of real numbers: "
            "keep it as real ones and use torch.view_as_complex in forward"
        )
    other = getattr(parameter, SHARDED_IN, None)
    if other is not None:
        raise ValueError(
            f"{name} is tied to {other}, which is in another unit: while one has the full "
            "parameter, the other may have given it up. Wrap a module that contains both, as one "
            "unit"
        )


def agree(
    modules: Sequence[tuple[str, nn.Module]],
    slots: Sequence[Slot],
    strategy: str,
    group: dist.ProcessGroup | None,
    sync: bool,
) -> None:
    """Make sure that all ranks have the same parameters and buffers; with `sync`, rank 0's values.

    Raises:
        ValueError: they differ. On every rank.
    """
    buffers = [
        (clean_name(prefix + name), buffer)
        for prefix, owner in modules
        for name, buffer in owner._buffers.items()
        if buffer is not None
    ]
    rows = [("option sharding_strategy", strategy)]
    rows += [(f"parameter {slot.name}", layout_of(slot.sharded)) for slot in slots]
    rows += [(f"buffer {name}", layout_of(buffer)) for name, buffer in buffers]
    check_replicas(rows, group)
    if sync:
        broadcast_(
            [*(slot.sharded for slot in slots), *(buffer for _, buffer in buffers)], 0, group
        )


# Dtypes.


def compute_dtype(slot: Slot, precision: MixedPrecision) -> torch.dtype:
    """In which a parameter is computed with: some modules keep their own."""
    dtype = slot.sharded.dtype
    keeps = any(_keeps_dtype(owner, precision) for owner, _ in slot.owners)
    wanted = precision.param_dtype
    return dtype if wanted is None or keeps or not dtype.is_floating_point else wanted


def convert_buffers(modules: Iterable[tuple[str, nn.Module]], precision: MixedPrecision) -> None:
    """Give floating buffers the dtype that was asked for."""
    if precision.buffer_dtype is None:
        return
    for _, owner in modules:
        for name, buffer in owner._buffers.items():
            floating = buffer is not None and buffer.is_floating_point()
            if buffer is not None and floating and not _keeps_dtype(owner, precision):
                owner._buffers[name] = buffer.to(precision.buffer_dtype)


def _keeps_dtype(module: nn.Module, precision: MixedPrecision) -> bool:
    return isinstance(module, tuple(precision._module_classes_to_ignore))


# Devices.


def prepare(
    modules: Sequence[tuple[str, nn.Module]],
    ignored: Collection[int],
    device_id: int | torch.device | None,
    param_init_fn: Callable[[nn.Module], None] | None,
) -> None:
    """Have all parameters of these modules on one device, with values.

    Raises:
        ValueError: they are on several devices.
    """
    device = torch.device("cuda", device_id) if isinstance(device_id, int) else device_id
    owners = [owner for _, owner in modules]
    materialise(owners, device or torch.device("cpu"), param_init_fn)
    for owner in owners if device is not None else ():
        for parameter in owner._parameters.values():
            if parameter is not None and id(parameter) not in ignored:
                parameter.data = parameter.data.to(device)
        for name, buffer in owner._buffers.items():
            if buffer is not None:
                owner._buffers[name] = buffer.to(device)
    devices = {
        str(parameter.device)
        for owner in owners
        for parameter in owner._parameters.values()
        if parameter is not None and id(parameter) not in ignored
    }
    if len(devices) > 1:
        raise ValueError(f"the parameters are on several devices: {', '.join(sorted(devices))}")


def materialise(
    modules: Sequence[nn.Module],
    device: torch.device,
    param_init_fn: Callable[[nn.Module], None] | None,
) -> None:
    """Give parameters and buffers that are on the meta device memory and values.

    Args:
        modules: each by itself, without those inside it.
        device: where to.
        param_init_fn: gives a module's own parameters memory and values; default `to_empty` and
            `reset_parameters()`.

    Raises:
        ValueError: a module has no `reset_parameters`, and no `param_init_fn` is given; or this
            left parameters on the meta device.
    """

    def on_meta(owner: nn.Module) -> bool:
        tensors = [*owner._parameters.values(), *owner._buffers.values()]
        return any(tensor is not None and tensor.is_meta for tensor in tensors)

    owners: dict[int, list[tuple[nn.Module, str]]] = {}
    for owner in modules:
        for name, parameter in owner._parameters.items():
            if parameter is not None and parameter.is_meta:
                owners.setdefault(id(parameter), []).append((owner, name))
    for owner in modules:
        if not on_meta(owner):
            continue
        kind = type(owner).__name__
        if param_init_fn is not None:
            param_init_fn(owner)
        else:
            reset = getattr(owner, "reset_parameters", None)
            if reset is None:
                raise ValueError(
                    f"{kind} is on the meta device and has no reset_parameters(): "
                    "pass param_init_fn"
                )
            owner.to_empty(device=device, recurse=False)
            with torch.no_grad():
                reset()
        if on_meta(owner):
            raise ValueError(f"param_init_fn left parameters of {kind} on the meta device")
    for (first, name), *others in owners.values():  # tied ones have become several
        for other, its_name in others:
            setattr(other, its_name, getattr(first, name))
