"""How long a controller has said nothing, which from afar may be all that tells of its end."""

import time


class Silence:
    """Counts the seconds since the last word (a monotonic clock: sleep does not count)."""

    def __init__(self, limit: float | None) -> None:
        """`limit`: how many are too many; None: no number is."""
        self._limit = limit
        self.broken()

    def broken(self) -> None:
        """Something was said."""
        self._since = time.monotonic()

    def forget(self) -> None:
        """Nothing is expected any more."""
        self._limit = None

    @property
    def over_at(self) -> float | None:
        """When it will have been too long, by the monotonic clock."""
        return None if self._limit is None else self._since + self._limit

    @property
    def is_too_long(self) -> bool:
        """Whether it is now."""
        return self.over_at is not None and time.monotonic() >= self.over_at
