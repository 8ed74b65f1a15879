"""Lengths of time as people write them."""

import re

from lab.errors import UsageError

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def seconds(text: str, option: str) -> float:
    """The seconds that `90`, `90s`, `5m`, `1.5h` or `1h30m` come to.

    Raises:
        UsageError: it is none of them, or nothing.
    """
    parts = re.findall(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    total = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or total <= 0:
        raise UsageError(f"{option} {text}: write seconds, or a length such as 90s, 5m or 2h")
    return total
