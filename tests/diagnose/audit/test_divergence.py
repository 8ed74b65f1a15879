"""What the judge of replicas says of numbers, where real ranks would have to train for it."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lab.diagnose.audit import Audit
from lab.diagnose.finding import Finding
from tests.diagnose.audit.records import layout, pack, replica

RANKS = 3
Values = Mapping[int, tuple[int, ...]]


def _judge(
    steps: list[tuple[Values, Values]],
    laid_out: Any = None,
    before: list[Mapping[str, Any]] | None = None,
    **fields: Any,
) -> list[Finding]:
    """Steps are digests of weights and of gradients, by rank; `before`: other records of each."""
    audit = Audit(RANKS, {rank: f"node{rank}" for rank in range(RANKS)})
    found = []
    for rank in range(RANKS):
        found += audit.feed(rank, laid_out or layout())
        for record in before or ():
            found += audit.feed(rank, {"rank": rank, **record})
    for count, (weights, gradients) in enumerate(steps, start=1):
        for rank in range(RANKS):
            record = replica(count, weights[rank], gradients[rank], **fields)
            found += audit.feed(rank, record)
    found += audit.close()
    assert audit.broken == []
    return found


def _same(*digests: int) -> Values:
    return dict.fromkeys(range(RANKS), digests)


def _own(start: int) -> Values:
    return {rank: (start + rank, start + 10 + rank) for rank in range(RANKS)}


def test_replicas_that_stay_equal_are_fine() -> None:
    assert _judge([(_same(n, n + 1), _same(n + 2, n + 3)) for n in range(1, 9)]) == []


def test_the_minority_is_guilty() -> None:
    weights = {0: (5, 6), 1: (5, 6), 2: (7, 6)}
    (finding,) = _judge(
        [(_same(1, 2), _same(3, 4)), (weights, _same(3, 4))], exchanged={"after": 1}
    )
    assert finding.kind == "parameters-differ"
    assert finding.ranks == (2,)
    assert finding.nodes == ("node2",)
    assert finding.step == 1
    assert "weight" in finding.summary
    assert "bias" not in finding.summary


def test_one_rank_begins_with_other_weights() -> None:
    apart = {0: (1, 2), 1: (5, 6), 2: (1, 2)}
    (finding,) = _judge([(apart, _same(3, 4))] * 2, exchanged={"after": 1})
    assert (finding.kind, finding.ranks) == ("weights-differ-at-start", (1,))
    assert finding.summary.startswith("rank 1 begins with other weights")


def test_owners_that_update_weights_by_their_own_gradients_alone() -> None:
    """As ZeRO does where nothing reduces: weights stay equal, and gradients never are."""
    steps = [(_same(n, n + 1), _own(20 * n)) for n in range(1, 9)]
    (finding,) = _judge(steps, exchanged={"updates": 2})
    assert (finding.kind, finding.severity) == ("gradients-not-reduced", "error")
    assert (finding.ranks, finding.step) == ((0, 1, 2), 1)
    assert "learns from one rank's data alone" in finding.summary
    # Gradients may be sent to the owner alone; and an average of weights is one (local SGD).
    assert _judge(steps, exchanged={"updates": 2, "small": 2, "reduce": 2}) == []
    assert _judge(steps, exchanged={"updates": 2, "parameters": 2}) == []
    assert _judge(steps, laid_out=layout(managed=[True, True]), exchanged={"updates": 2}) == []


def test_a_difference_of_rounding_is_a_warning() -> None:
    weights = {0: (20_000_000, 2), 1: (20_000_000, 2), 2: (20_000_002, 2)}
    (finding,) = _judge(
        [(_same(1, 2), _same(3, 4)), (weights, _same(3, 4))], exchanged={"after": 1}
    )
    assert (finding.kind, finding.severity) == ("parameters-differ", "warning")


def test_a_difference_that_outgrows_rounding_is_an_error() -> None:
    steps = [(_same(1, 2), _same(3, 4))]
    for apart in (2, 2, 4, 2_000, 3_000):
        steps.append(({r: (20_000_000 + apart * (r == 2), 2) for r in range(3)}, _same(3, 4)))
    first, second = _judge(steps, exchanged={"after": 1})
    assert (first.severity, second.severity) == ("warning", "error")
    assert (first.ranks, second.ranks) == ((2,), (2,))
    assert first.step == second.step == 1


def test_weights_that_begin_apart_by_rounding_are_a_warning_until_they_differ_by_more() -> None:
    def apart(by: int) -> Values:
        return {rank: (20_000_000 + by * (rank == 2), 2) for rank in range(RANKS)}

    steps: list[tuple[Values, Values]] = [(apart(2), _same(3, 4))] * 3
    (finding,) = _judge(steps, exchanged={"after": 1})
    assert (finding.kind, finding.severity) == ("weights-differ-at-start", "warning")
    assert finding.evidence[0] == "the norm of weight: 20000000 on ranks 0, 1, 20000002 on rank 2"
    found = _judge([*steps, (apart(2_000), _same(3, 4))], exchanged={"after": 1})
    assert [one.severity for one in found] == ["warning", "error"]


def test_other_weights_of_one_norm_do_not_differ_by_rounding() -> None:
    """As orthogonal matrices from a seed of each rank's own."""
    audit = Audit(RANKS, dict.fromkeys(range(RANKS), "node0"))
    found = []
    for rank in range(RANKS):
        audit.feed(rank, layout())
    for rank in range(RANKS):
        same = {"parameter_norms": pack("f", (2, 2)), "exchanged": {"after": 1}}
        found += audit.feed(rank, {**replica(1, (1 + rank, 2), (3, 4)), **same})
    (finding,) = found
    assert (finding.kind, finding.severity) == ("weights-differ-at-start", "error")
    assert finding.evidence[0].startswith("the sum of weight's elements: 1 on rank 0")


def test_learning_rates_that_are_tried_out_are_no_fault() -> None:
    assert _judge([(_same(1, 2), _same(3, 4)), (_own(5), _own(30)), (_own(60), _own(90))]) == []


def test_an_ensemble_is_no_fault_unless_its_losses_are_averaged() -> None:
    steps = [(_own(10 * n), _own(100 * n)) for n in range(1, 5)]
    assert _judge(steps) == []
    (finding,) = _judge(steps, exchanged={"small": 1})
    assert finding.kind == "gradients-not-reduced"
    assert finding.ranks == (0, 1, 2)


def test_where_some_gradients_are_reduced_no_models_of_their_own_are_trained() -> None:
    def apart(start: int) -> Values:
        return {rank: (start, start + 1 + rank) for rank in range(RANKS)}

    (finding,) = _judge(
        [(apart(10 * n), apart(100 * n)) for n in range(1, 5)], exchanged={"after": 1}
    )
    assert finding.kind == "gradients-not-reduced"
    assert finding.summary.endswith("of bias: they are others on each rank")


def test_a_world_that_was_joined_for_nothing_is_a_warning() -> None:
    steps = [(_own(10 * n), _own(100 * n)) for n in range(1, 5)]
    place = {"step": 0, "file": "train.py", "line": 2, "function": "main"}
    joined = {"check": "world", "size": RANKS, **place}
    (finding,) = _judge(steps, before=[joined])
    assert (finding.kind, finding.severity) == ("gradients-not-reduced", "warning")
    assert "sent each other nothing in 4 steps" in finding.summary
    group = ["0", tuple(range(RANKS)), "call", "barrier", *[None] * 4, "train.py", 9, "main"]
    called = {"check": "collectives", "step": 0, "new": [group], "seen": [(0, 1, 0)]}
    assert _judge(steps, before=[joined, called]) == []


def test_folds_whose_scores_are_gathered_are_a_warning() -> None:
    steps: list[tuple[Values, Values]] = [(_same(1, 2), _own(30))]
    steps += [(_own(10 * n), _own(100 * n)) for n in range(1, 4)]

    def called(*ops: str) -> list[Mapping[str, Any]]:
        new = [["0", (0, 1, 2), "call", op, *[None] * 4, "train.py", 9, "main"] for op in ops]
        seen = [(place, place + 1, 4) for place in range(len(ops))]
        return [{"check": "collectives", "step": 4, "new": new, "seen": seen}]

    for gather in ("gather_object", "all_gather"):
        (finding,) = _judge(steps, before=called("barrier", gather))
        assert (finding.kind, finding.severity) == ("gradients-not-reduced", "warning")
    assert "send each other nothing in 4 steps" in finding.summary
    assert "nothing is wrong" in (finding.cure or "")
    # The average of a number may be about one model that all are taken to train.
    for others in (called("barrier"), called("gather_object", "all_reduce")):
        assert [one.severity for one in _judge(steps, before=others)] == ["error"]
    (finding,) = _judge(steps, layout(sampler=True), before=called("gather_object"))
    assert finding.severity == "error"


def test_parts_of_a_model_differ_on_purpose() -> None:
    steps = [(_same(1, 2), _own(30)), *((_own(10 * n), _own(100 * n)) for n in range(1, 5))]
    for sent in ("forward", "backward", "point_to_point", "subgroup"):
        assert _judge(steps, exchanged={sent: 1}) == []
    assert _judge(steps, layout(parts=[True, True])) == []


def test_parameters_that_are_averaged_may_have_differed() -> None:
    steps = [(_same(1, 2), _own(30)), (_own(5), _own(60)), (_same(7, 8), _own(90))]
    assert _judge(steps) == []


def test_weights_that_never_differed_are_no_average() -> None:
    """Adam's first steps are the learning rate, up or down: a bias of one number stays equal."""
    place = {"step": 0, "file": "train.py", "line": 2, "function": "main"}
    joined = {"check": "world", "size": RANKS, **place}
    weights: list[Values] = [{r: (10 * n + r, n + 1) for r in range(RANKS)} for n in range(1, 6)]
    weights[4] = {r: (99 + r, 7 + r) for r in range(RANKS)}
    steps = [(_same(1, 2), _own(30)), *((each, _own(60)) for each in weights)]
    for exchanged in ({}, {"small": 1}):
        (finding,) = _judge(steps, layout(sampler=True), [joined], exchanged=exchanged)
        assert (finding.kind, finding.ranks) == ("gradients-not-reduced", (0, 1, 2))
        assert "all 2 parameters" in finding.summary


def test_one_number_that_is_equal_again_is_no_average() -> None:
    steps: list[tuple[Values, Values]] = [(_same(1, 2), _own(30)), (_own(5), _own(60))]
    steps += [({r: (20 + r, 7) for r in range(RANKS)}, _own(90)), (_own(40), _own(95))]
    (finding,) = _judge(steps, layout(sampler=True, shapes=[[20, 20], [1]]))
    assert (finding.kind, finding.severity) == ("gradients-not-reduced", "error")
    # What has many numbers is: the rest may be meant to be the ranks' own.
    steps[2] = ({r: (7, 20 + r) for r in range(RANKS)}, _own(90))
    assert _judge(steps, layout(sampler=True, shapes=[[20, 20], [1]])) == []


def test_no_average_where_nothing_was_called_since() -> None:
    steps = [(_same(1, 2), _own(30)), (_own(5), _own(60)), (_same(7, 8), _own(90))]
    found = _judge(steps, layout(sampler=True), moment=[0, 4, 0, 1])  # the same at each step
    kinds = {one.kind for one in found}
    assert kinds == {"gradients-not-reduced"}


def test_a_wrapper_that_does_not_reduce_is_said_at_once() -> None:
    audit = Audit(RANKS, dict.fromkeys(range(RANKS), "node0"))
    found = []
    for rank in range(RANKS):
        audit.feed(rank, layout(managed=[True, True], group=[0, 1, 2]))
    for count, weights in ((1, _same(1, 2)), (2, _own(5))):
        for rank in range(RANKS):
            found += audit.feed(rank, replica(count, weights[rank], _own(30 * count)[rank]))
    assert [finding.kind for finding in found] == ["gradients-not-reduced"]


def test_steps_that_some_ranks_did_not_look_at_are_not_compared() -> None:
    audit = Audit(RANKS, dict.fromkeys(range(RANKS), "node0"))
    for rank in range(RANKS):
        audit.feed(rank, layout())
    for count in range(1, 9):
        for rank in (0, 1, 2) if count % 4 == 0 else (1, 2):
            # Were ranks 1 and 2 compared by themselves, they would seem never to have been equal.
            digest = count if count % 4 == 0 else 10 * count + rank
            assert audit.feed(rank, replica(count, (digest, 1), (1, 1))) == []
    assert audit.close() == []


def test_nan_is_another_matter() -> None:
    nan = pack("f", (math.nan, math.nan))
    steps = [(_same(1, 2), _same(3, 4)), (_own(5), _own(30))]
    kinds = [finding.kind for finding in _judge(steps, parameter_norms=nan)]
    assert kinds == []  # so from the start, and so on purpose


def test_a_judge_that_breaks_is_left_out() -> None:
    audit = Audit(1, {0: "node0"})
    assert audit.feed(0, {"check": "replica", "step": 1}) == []
    assert any("KeyError" in words for words in audit.broken)
    assert audit.close() == []


def test_gradients_that_were_never_reduced_are_told_of_though_all_are_none_at_the_end() -> None:
    steps: list[tuple[Values, Values]] = [(_same(1, 2), _own(3))]
    steps += [(_own(20 + 10 * n), _same(0, 0)) for n in range(3)]
    (finding,) = _judge(steps, exchanged={"small": 1})
    assert (finding.kind, finding.ranks) == ("gradients-not-reduced", (0, 1, 2))
    assert "on rank 0" in finding.evidence[0]
    assert finding.line == 7


def test_a_rank_that_changes_its_gradients_after_they_were_reduced_is_told_so() -> None:
    gradients = {0: (3, 4), 1: (13, 14), 2: (13, 14)}
    steps: list[tuple[Values, Values]] = [(_same(1, 2), _same(3, 4)), (_same(1, 2), gradients)]
    steps += [({0: (5, 6), 1: (7, 8), 2: (7, 8)}, gradients)] * 2
    (finding,) = _judge(steps, exchanged={"after": 1})
    assert (finding.kind, finding.ranks) == ("gradients-not-reduced", (0,))
    assert finding.summary.startswith(
        "rank 0 steps with other gradients than ranks 1, 2, whose gradients are equal"
    )
    assert "clipping" in (finding.cure or "")


def test_gradients_put_together_after_the_step_are_said_to_be_late() -> None:
    steps = [(_same(1, 2), _own(30)), (_own(5), _own(60)), (_own(7), _own(90))]
    late = {"file": "train.py", "line": 9, "function": None}
    audit = Audit(RANKS, dict.fromkeys(range(RANKS), "node0"))
    for rank in range(RANKS):
        audit.feed(rank, layout())
    found = []
    for count, (weights, gradients) in enumerate(steps, start=1):
        what = {"late": late, "exchanged": {"late": 2}} if count > 1 else {}
        for rank in range(RANKS):
            found += audit.feed(rank, replica(count, weights[rank], gradients[rank], **what))
    (finding,) = found  # at once: not all runs end
    assert (finding.kind, finding.step, finding.line) == ("gradients-not-reduced", 1, 9)
    assert "after the step" in finding.summary
    assert "between backward and" in (finding.cure or "")


def test_gradients_nobody_waited_for_are_not_explained_otherwise() -> None:
    steps: list[tuple[Values, Values]] = [(_same(1, 2), _same(3, 4)), (_own(5), _own(30))]
    assert _judge(steps, unwaited=True, exchanged={"after": 1}) == []


Step = tuple[int, tuple[int, ...], tuple[int, ...]]
"""How many collectives there had been before it, weights, and gradients."""


def _judge_moments(steps: Mapping[int, Sequence[Step]], **fields: Any) -> list[str]:
    """The kinds of what is found where ranks take other numbers of steps."""
    audit = Audit(RANKS, dict.fromkeys(range(RANKS), "node0"))
    found = []
    for rank, own in steps.items():
        found += audit.feed(rank, layout(**fields))
        before, since = 0, 0
        for count, (began, weights, gradients) in enumerate(own, start=1):
            since = since + 1 if began == before else 1
            before = began
            record = replica(count, weights, gradients, moment=[0, began, 0, since])
            found += audit.feed(rank, {**record, "exchanged": {"small": 1}})
    found += audit.close()
    assert audit.broken == []
    return [finding.kind for finding in found]


def test_ranks_that_step_less_often_are_compared_at_the_same_moments() -> None:
    """As with `Join`: rank 0 has fewer batches an epoch, and takes part in the others' sums."""
    weights = {began: (began, began + 1) for began in range(2, 18, 2)}
    all_steps = [(began, weights[began], (1, 2)) for began in weights]
    few = [one for one in all_steps if one[0] not in (6, 8, 14, 16)]
    wrapped = {"managed": [True, True], "group": [0, 1, 2]}
    assert _judge_moments({0: few, 1: all_steps, 2: all_steps}, **wrapped) == []
    few[-1] = few[-1][0], (99, 98), (1, 2)
    assert _judge_moments({0: few, 1: all_steps, 2: all_steps}, **wrapped) == ["parameters-differ"]


def test_rounds_of_other_numbers_of_local_steps_are_no_fault() -> None:
    steps: dict[int, list[Step]] = {0: [], 1: [], 2: []}
    for rank, own in steps.items():
        for began in (0, 3, 6):
            own.append((began, (began + 1, 2), (10 + rank, 20 + rank)))
            for local in range(2 + rank):
                value = 100 * (began + 1) + 10 * local + rank
                own.append((began, (value, value + 5), (10 + rank, 20 + rank)))
    assert _judge_moments(steps) == []


def test_a_rank_that_steps_twice_is_still_found() -> None:
    usual = [(began, (began, began + 1), (1, 2)) for began in (2, 4, 6, 8)]
    twice = [usual[0], (2, (5, 5), (1, 2)), *[(b, (w[0] + 7, 9), g) for b, w, g in usual[1:]]]
    wrapped = {"managed": [True, True], "group": [0, 1, 2]}
    assert _judge_moments({0: usual, 1: twice, 2: usual}, **wrapped) == ["parameters-differ"]
