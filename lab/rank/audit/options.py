"""The options of an optimizer's groups: learning rate, weight decay, ..."""

from typing import Any

from torch import Tensor
from torch.optim import Optimizer

Options = dict[tuple[int, str], Any]
"""By the number of the group and the option's name; `params`: how many the group has."""
PLAIN = (bool, int, float, str, type(None))


def options_of(optimizer: Optimizer) -> Options:
    """Those that its class knows; not what a script keeps beside them."""
    kind = type(optimizer).__name__
    options: Options = {}
    for number, group in enumerate(optimizer.param_groups):
        options[number, "optimizer"] = kind
        options[number, "params"] = len(group["params"])
        for name in optimizer.defaults or group.keys() - {"params"}:
            value = _plain(group.get(name))
            if isinstance(value, PLAIN) or (
                isinstance(value, list) and all(isinstance(one, PLAIN) for one in value)
            ):
                options[number, name] = value
    return options


def _plain(value: Any) -> Any:
    """A number in place of a tensor [], a list in place of a tuple: as JSON has them."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    return [_plain(one) for one in value] if isinstance(value, tuple) else value


def changes(before: Options, now: Options) -> list[tuple[int, str, Any]]:
    """What is not as it was: group, name, value."""
    return [(*key, one) for key, one in now.items() if key not in before or before[key] != one]
