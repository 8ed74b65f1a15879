"""What is known of a rank that gloo has aborted: what gloo said, and its last stack."""

from dataclasses import dataclass

from lab.diagnose.why.activity import Activity, activity_of, name_of
from lab.diagnose.why.evidence import Evidence, Frame, Rank
from lab.diagnose.why.sequences import place_of

SIGABRT = 6
MESSAGES = frozenset(
    {
        *("recv", "irecv", "recv_object_list", "send", "isend", "send_object_list"),
        "batch_isend_irecv",
    }
)
"""Functions that are no collectives: one rank sends, another receives."""


@dataclass(frozen=True)
class Abort:
    """What gloo and the last stack have told."""

    rank: Rank
    came: int
    """Bytes, and so is the room."""
    room: int
    activity: Activity

    @property
    def told(self) -> str:
        """As a sentence of the evidence."""
        return (
            f"gloo ended rank {self.rank.number}: {self.came} bytes came, and it had room for "
            f"{self.room}"
        )

    @property
    def operation(self) -> str:
        """What it called of torch.distributed: a library's function is no collective."""
        for frame in self.rank.frames:
            if frame.file.endswith("/distributed_c10d.py"):
                return name_of(frame)
        return "a collective"


def aborted_at(evidence: Evidence, site: Frame | None) -> tuple[int, ...]:
    """Ranks that were aborted at one line: too much has come to more than one, it may be."""
    return tuple(
        number
        for number, rank in sorted(evidence.ranks.items())
        if (rank.ended or {}).get("signal") == SIGABRT
        and not rank.collectives
        and place_of(activity_of(rank).site) == place_of(site)
    )
