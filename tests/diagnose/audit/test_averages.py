"""Weights that are averaged, and weights of one rank that take the place of all others'."""

from collections.abc import Mapping

from lab.diagnose.audit import Audit
from lab.diagnose.finding import Finding
from tests.diagnose.audit.records import layout, replica

Look = tuple[bool, int, Mapping[str, int]]
"""Whether weights are equal, how many collectives there had been, and what was sent since."""


def _judge(looks: list[Look], averaged: bool = False) -> list[Finding]:
    """Two ranks, whose gradients differ at each step."""
    audit = Audit(2, {0: "node0", 1: "node1"})
    found = []
    for rank in (0, 1):
        audit.feed(rank, layout(sampler=True, shapes=[[20, 20], [20]]))
    for count, (equal, began, sent) in enumerate(looks, start=1):
        for rank in (0, 1):
            own = 0 if equal else rank
            weights = 100 * count + own, 100 * count + 50 + own
            gradients = 1000 * count + rank, 1000 * count + 500 + rank
            moment = [0, began, 0, count]
            found += audit.feed(
                rank, replica(count, weights, gradients, moment=moment, exchanged=sent)
            )
    if averaged:
        for rank in (0, 1):
            found += audit.feed(rank, {"check": "averaged", "step": 9, "optimizers": [0]})
    found += audit.close()
    assert audit.broken == []
    return found


def _rounds(began: int, sent: Mapping[str, int]) -> list[Look]:
    looks: list[Look] = [(True, 1, {})]
    for number in range(3):
        calls = 1 + number * began
        looks += [(False, calls, {}), (False, calls, {}), (True, calls + began, sent)]
    return [*looks, (False, 1 + 3 * began, {})]


def test_broadcasts_of_one_rank_are_no_average() -> None:
    for sent in ({"from 0": 2, "small": 2}, {"from 0": 1, "copies": 1, "barrier": 1}):
        (finding,) = _judge(_rounds(2, sent))
        assert (finding.kind, finding.ranks, finding.step) == ("gradients-not-reduced", (1,), 1)
        assert "what it learns is lost: rank 0's weights are sent to all" in finding.summary


def test_broadcasts_of_what_was_put_together_or_chosen_before_are_an_average() -> None:
    gathered = {"from 0": 2, "copies": 2, "small": 2}
    assert _judge(_rounds(4, gathered)) == []
    best_of_each_round = {"from 1": 1, "from 0": 1, "copies": 2}
    assert _judge(_rounds(2, best_of_each_round)) == []


def test_weights_that_are_averaged_after_each_step_are_never_seen_to_differ() -> None:
    looks: list[Look] = [(True, 2 * n, {"small": 2}) for n in range(1, 9)]
    assert _judge(looks) == []


def test_weights_that_are_put_together_after_the_last_step_are_averaged() -> None:
    looks: list[Look] = [(True, 1, {}), *[(False, 1, {})] * 5]
    (finding,) = _judge(looks)
    assert (finding.kind, finding.severity) == ("gradients-not-reduced", "error")
    assert _judge(looks, averaged=True) == []
