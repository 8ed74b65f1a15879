"""Amounts with a unit: memory, link rate, delay, loss and Slurm's times.

Each `read_*` function gives back one canonical spelling, so that every consumer (Docker's API,
Compose, tc, sbatch) can take it over as it stands, or raises ValueError with what is allowed.
"""

import re
from decimal import Decimal

_MEMORY = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([bkmgt]?)(?:i?b)?", re.IGNORECASE)
_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*([kmgt]?)bit", re.IGNORECASE)
_DELAY = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(us|ms|s)", re.IGNORECASE)
_LOSS = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s*%")
_TIME = re.compile(
    r"\d{1,6}"  # minutes
    r"|\d{1,6}:[0-5]?\d(:[0-5]?\d)?"  # minutes:seconds, hours:minutes:seconds
    r"|\d{1,4}-\d{1,2}(:[0-5]?\d(:[0-5]?\d)?)?"  # days-hours[:minutes[:seconds]]
)

_BYTES = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_BITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_SECONDS = {"us": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": Decimal(1)}

MEMORY_RULE = "must be an amount of memory with a unit, such as 512m or 2g"
RATE_RULE = "must be bits per second with a unit, such as 200mbit or 1gbit"
DELAY_RULE = "must be a time with a unit, such as 500us or 20ms"
LOSS_RULE = "must be the share of lost packets in percent, such as 0.1%"
TIME_RULE = (
    "must be one of Slurm's forms of time: minutes, minutes:seconds, hours:minutes:seconds or "
    "days-hours; hours:minutes:seconds in quotes"
)


def memory_bytes(text: str) -> int:
    """The bytes in an amount such as `2g` (powers of 1024, as Docker counts)."""
    found = _MEMORY.fullmatch(text)
    if found is None:
        raise ValueError(MEMORY_RULE)
    return int(Decimal(found[1]) * _BYTES[found[2].lower()])


def read_memory(value: object) -> str:
    """`2GiB`, `2048m` and the number of bytes all become `2g`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        value = str(value)
    if not isinstance(value, str):
        raise ValueError(MEMORY_RULE)
    amount = memory_bytes(value)
    # Docker refuses less than 6 MB for a container; less shared memory is of no use to anyone.
    if amount < 6 * 2**20:
        raise ValueError(f"{MEMORY_RULE}; at least 6m")
    for unit in "tgmk":
        if amount % _BYTES[unit] == 0:
            return f"{amount // _BYTES[unit]}{unit}"
    return f"{amount}b"


def rate_bits(text: str) -> int:
    """Bits per second in a rate such as `200mbit` (powers of 1000, as tc counts)."""
    found = _RATE.fullmatch(text)
    if found is None:
        raise ValueError(RATE_RULE)
    return int(Decimal(found[1]) * _BITS[found[2].lower()])


def read_rate(value: object) -> str:
    """A rate as tc takes it. `mbps` is refused: tc would read it as megabytes."""
    if not isinstance(value, str):
        raise ValueError(RATE_RULE)
    if rate_bits(value) < 8_000:
        raise ValueError(f"{RATE_RULE}; at least 8kbit")
    return value.replace(" ", "").lower()


def read_delay(value: object) -> str:
    """A one-way delay as tc takes it, up to ten seconds."""
    found = _DELAY.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(DELAY_RULE)
    if Decimal(found[1]) * _SECONDS[found[2].lower()] > 10:
        raise ValueError(f"{DELAY_RULE}; at most 10s")
    return f"{found[1]}{found[2].lower()}"


def read_loss(value: object) -> str:
    """The share of lost packets as tc takes it; at 100% there would be no link."""
    found = _LOSS.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError(LOSS_RULE)
    if Decimal(found[1]) >= 100:
        raise ValueError(f"{LOSS_RULE}; below 100%")
    return f"{found[1]}%"


def read_slurm_time(value: object) -> str:
    """A time limit as sbatch's --time takes it; a plain number is minutes."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        value = str(value)
    if not isinstance(value, str) or _TIME.fullmatch(value) is None:
        raise ValueError(TIME_RULE)
    return value
