"""What the user wants where no rank makes progress: see `lab.node.stall`."""

from dataclasses import dataclass
from typing import Literal, get_args

from lab.errors import UsageError

OnStall = Literal["report", "stop"]


@dataclass(frozen=True)
class Stall:
    """What the user wants of it."""

    after: float = 60.0
    """Seconds without progress that are too many; 0: none are."""
    stop: bool = False
    """Whether the run is ended then."""

    @classmethod
    def of(cls, after: float, then: str) -> "Stall":
        """`--stall` in seconds and `--on-stall`.

        Raises:
            UsageError: they are none.
        """
        if then not in get_args(OnStall):
            raise UsageError(f"--on-stall {then}: it is {' or '.join(get_args(OnStall))}")
        if not after >= 0:  # NaN is not, either
            raise UsageError(f"stall {after}: name the seconds, 0 or more")
        return cls(after, then == "stop")
