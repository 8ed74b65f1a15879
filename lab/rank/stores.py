"""For which keys of a store each thread waits: the calls are C's, so that no stack has them."""

import functools
import sys
from _thread import get_ident
from collections.abc import Callable
from typing import Any

from .imports import C10D, after_import

FUNCTIONS = ("get", "wait", "multi_get", "queue_pop")
"""The calls that return when somebody has set what they ask for."""
KEYS = 8
"""How many keys are told of."""
LONGEST_KEY = 200

_asked: dict[int, tuple[str, Any]] = {}
"""By thread: the call that it is in, and the keys."""


def watch() -> None:
    """Note them from when the script imports torch.distributed."""
    after_import(C10D, _wrap)


def told(ident: int) -> dict[str, Any] | None:
    """The `function` of a store that a thread is in, and its `keys`; None: it is in none."""
    call = _asked.get(ident)
    if call is None:
        return None
    function, asked = call
    keys = [asked] if isinstance(asked, str) else list(asked)
    return {
        "function": function,
        "keys": [key[:LONGEST_KEY] for key in keys[:KEYS] if isinstance(key, str)],
    }


def _wrap() -> None:
    store: Any = getattr(sys.modules.get("torch._C._distributed_c10d"), "Store", None)
    for name in FUNCTIONS:
        function = getattr(store, name, None)
        if function is not None:
            setattr(store, name, _noting(function, name))


def _noting(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapped(store: Any, *args: Any, **kwargs: Any) -> Any:
        ident = get_ident()
        before = _asked.get(ident)  # a store in Python that asks another
        if args and isinstance(args[0], str | list | tuple):
            _asked[ident] = (name, args[0])
        try:
            return function(store, *args, **kwargs)
        finally:
            if before is None:
                _asked.pop(ident, None)
            else:
                _asked[ident] = before

    return wrapped
