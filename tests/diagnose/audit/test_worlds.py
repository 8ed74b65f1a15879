"""Who has joined as whom."""

from typing import Any

from lab.diagnose.audit.worlds import Worlds
from lab.diagnose.finding import Finding


def found(*joined: tuple[int, int] | None) -> list[Finding]:
    """Of ranks that have joined as that one, of so many; None: not at all."""
    judge = Worlds(len(joined))
    place: dict[str, Any] = {"step": 0, "file": "train.py", "line": 4, "function": "<module>"}
    for number, one in enumerate(joined):
        if one is not None:
            judge.feed(number, {"check": "world", "rank": one[0], "size": one[1], **place})
    return judge.close()


def test_several_worlds_are_told_by_ranks_of_one_number() -> None:
    (finding,) = found((0, 2), (1, 2), (0, 2), (1, 2))
    assert "4 ranks, and they are in worlds of 2: ranks 0, 2 have each joined" in finding.summary
    assert "alone" not in finding.summary
    (finding,) = found((0, 1), (0, 1))
    assert finding.summary.endswith("each trains alone")


def test_other_numbers_and_smaller_worlds_are_nobodys_fault() -> None:
    assert found((1, 2), (0, 2)) == []
    assert found((0, 2), (1, 2), None, None) == []
