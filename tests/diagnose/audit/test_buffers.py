"""Buffers of the ranks where they evaluate."""

from base64 import b64encode
from struct import pack
from typing import Any

from lab.diagnose.audit.buffers import Buffers
from lab.diagnose.finding import Finding

SITE = {"file": "train.py", "function": None}


def record(when: str, digest: int, step: int = 0, line: int = 0) -> dict[str, Any]:
    digests = b64encode(pack("<I", digest)).decode()
    about = {"check": "buffers", "when": when, "step": step, "line": line, **SITE}
    return {**about, "evaluation": step, "names": ["mean"], "digests": digests}


def found(*ranks: list[dict[str, Any]]) -> list[Finding]:
    judge = Buffers(len(ranks))
    trained = {"check": "replica", "optimizer": 0, "count": 2, "parameters": "same"}
    findings = []
    for rank, records in enumerate(ranks):
        for one in (trained, record("begin", 1), *records):
            findings += judge.feed(rank, one)
    return findings + judge.close()


def test_an_evaluation_of_one_rank_alone_is_not_held_against_the_next_of_another() -> None:
    alone, together = record("evaluation", 2, 1, 5), record("evaluation", 3, 2, 9)
    assert found([alone, together], [together]) == []


def test_evaluations_at_one_step_and_line_are_compared() -> None:
    alone = record("evaluation", 2, 1, 5)
    (finding,) = found([alone, record("evaluation", 3, 2, 9)], [record("evaluation", 4, 2, 9)])
    assert (finding.kind, finding.step, finding.line) == ("buffers-differ", 2, 9)
