"""Findings as data and in words."""

import json

import pytest

from lab.diagnose.finding import AUDIT_KINDS, WHY_KINDS, Finding, Innocent
from lab.diagnose.words import place_in_words, ranks_in_words


def test_a_finding_comes_back_from_a_file_as_it_was() -> None:
    finding = Finding(
        "skipped-collective",
        "error",
        "rank 3 skipped all_reduce #17",
        ranks=(3,),
        nodes=("node1",),
        step=4,
        file="train.py",
        line=88,
        function="step",
        innocent=(Innocent((0, 1, 2), "wait", "train.py", 90, "step", since=1.5),),
        evidence=("seen",),
        cure="call it",
    )
    assert Finding.from_json(json.loads(json.dumps(finding.to_json()))) == finding


def test_an_unknown_kind_is_refused() -> None:
    data = Finding("dead", "error", "gone").to_json()
    with pytest.raises(ValueError, match="'haunted'"):
        Finding.from_json({**data, "kind": "haunted"})


def test_every_kind_has_its_group() -> None:
    # One command finds a mismatch before it hangs, the other after.
    assert {"mismatched-collective"} == WHY_KINDS & AUDIT_KINDS


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([3], "rank 3"),
        ([1, 0], "ranks 0, 1"),
        ([0, 1, 2, 5, 7, 8], "ranks 0-2, 5, 7, 8"),
        (range(1000), "ranks 0-999"),
    ],
)
def test_ranks_in_words(ranks: list[int], words: str) -> None:
    assert ranks_in_words(ranks) == words


def test_places_in_words() -> None:
    assert place_in_words("train.py", 88) == "train.py:88"
    assert place_in_words("train.py", None) == "train.py"
    assert place_in_words(None, 88) is None
