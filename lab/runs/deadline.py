"""`--timeout`: how long the ranks of a run may take."""

import time


class Deadline:
    """Counts from the first start of a run's ranks; beginning again gives no new time."""

    def __init__(self, timeout: float | None) -> None:
        """`timeout` in seconds; None: as long as they like."""
        self.timeout = timeout
        self._at: float | None = None

    def start(self) -> None:
        """The ranks start, for the first time or once more."""
        if self.timeout is not None and self._at is None:
            self._at = time.monotonic() + self.timeout

    @property
    def has_passed(self) -> bool:
        """Whether the time is up."""
        return self._at is not None and time.monotonic() > self._at
