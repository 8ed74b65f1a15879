"""Fabric's classes, without what they are imported with for the tests of Fabric's own users.

Under both Fabric and paramiko, invoke imports unittest.mock for its MockContext, and that imports
asyncio and ssl: a tenth of the time that `lab exec` takes to begin, where `ssh` has begun already.
"""

import sys
from types import ModuleType
from typing import Any

_MOCK = "unittest.mock"


def _mock(*args: Any, **kwargs: Any) -> Any:
    """The real `Mock`, imported when somebody makes one."""
    from unittest.mock import Mock

    return Mock(*args, **kwargs)


_stands_in = _MOCK not in sys.modules
if _stands_in:
    sys.modules[_MOCK] = ModuleType(_MOCK)
    sys.modules[_MOCK].Mock = _mock  # type: ignore[attr-defined]  # a module of our own making
try:
    from fabric import Config, Connection
finally:
    if _stands_in:
        del sys.modules[_MOCK]

__all__ = ["Config", "Connection"]
