"""A fault of which lab does not know what it is gets more time once; a wrong name does not."""

from pathlib import Path
from typing import Any

import pytest

from lab.zoo.registry import find_cases
from lab.zoo.runner import STALL, Outcome, Zoo

CASE = find_cases(["barrier-on-rank-zero"])[0]


@pytest.mark.parametrize(
    ("twin", "kinds", "stalls"),
    [
        ("fault", ["unknown", "extra-collective"], [STALL["fault"], STALL["healthy"]]),
        ("fault", ["unknown", "unknown"], [STALL["fault"], STALL["healthy"]]),
        ("fault", ["partitioned"], [STALL["fault"]]),
        ("healthy", ["unknown"], [STALL["healthy"]]),
    ],
)
def test_what_is_run_again(
    twin: Any, kinds: list[str], stalls: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = iter(kinds)
    seen: list[int] = []

    def run(_zoo: Zoo, words: list[str]) -> Outcome:
        seen.append(int(words[words.index("--stall") + 1]))
        return Outcome("a", {"kind": "stalled", "why": {"kind": next(told)}})

    monkeypatch.setattr(Zoo, "_run", run)
    outcome = Zoo(tmp_path, "local", 2).run_case(CASE, twin)
    assert (seen, outcome.verdict["why"]["kind"]) == (stalls, kinds[-1])
    assert outcome.again == (len(stalls) > 1)
