"""Options of the ranks' optimizers, as the reason why weights come apart."""

from typing import Any

from lab.diagnose.audit import Audit
from lab.diagnose.finding import Finding
from tests.diagnose.audit.records import layout, replica

Options = dict[str, Any]
Step = tuple[int, list[Options | None], list[int]]


def _judge(*steps: Step, **fields: Any) -> list[Finding]:
    """Steps: count, by rank what has changed in the only group, and digests of the weight."""
    audit = Audit(2, {0: "node0", 1: "node1"})
    found: list[Finding] = []
    for rank in range(2):
        found += audit.feed(rank, layout(**fields.pop("layout", {})))
    for count, changed, weights in steps:
        for rank in range(2):
            options = [[0, name, value] for name, value in (changed[rank] or {}).items()]
            record = replica(count, (weights[rank], 1), (3, 4), options=options, **fields)
            found += audit.feed(rank, record)
    found += audit.close()
    assert audit.broken == []
    return found


def _options(**options: Any) -> Options:
    return {"optimizer": "SGD", "params": 2, "lr": 0.1, "weight_decay": 0, **options}


REDUCED = {"exchanged": {"after": 1}}


def test_the_option_that_differs_is_named_with_its_values() -> None:
    (finding,) = _judge(
        (1, [_options(), _options(lr=0.2)], [1, 1]), (2, [None, None], [5, 6]), **REDUCED
    )
    assert (finding.kind, finding.step) == ("parameters-differ", 1)
    assert finding.summary.endswith("; the optimizers' lr is 0.1 on rank 0, 0.2 on rank 1")
    assert "lr" in (finding.cure or "")


def test_a_scheduler_that_steps_on_one_rank_alone_is_seen_where_it_does() -> None:
    (finding,) = _judge(
        (1, [_options(), _options()], [1, 1]),
        (2, [{"lr": 0.05}, {"lr": 0.05}], [2, 2]),
        (3, [None, {"lr": 0.025}], [3, 3]),
        (4, [None, None], [5, 6]),
        **REDUCED,
    )
    assert finding.step == 3
    assert "lr is 0.05 on rank 0, 0.025 on rank 1" in finding.summary


def test_another_optimizer_is_said_and_not_all_that_comes_with_it() -> None:
    adam = {"optimizer": "Adam", "params": 2, "lr": 0.01, "betas": [0.9, 0.999]}
    (finding,) = _judge((1, [_options(), adam], [1, 1]), (2, [None, None], [5, 6]), **REDUCED)
    assert "optimizer is SGD on rank 0, Adam on rank 1" in finding.summary
    assert "betas" not in finding.summary


def test_groups_that_hold_other_parameters_are_compared_by_parameter() -> None:
    audit = Audit(2, {0: "node0", 1: "node1"})
    groups = [(1, 0.5), (1, 0.0)], [(2, 0.5)]
    for rank in range(2):
        audit.feed(rank, layout())
    found: list[Finding] = []
    for count, bias in ((1, (1, 1)), (2, (5, 6))):
        for rank in range(2):
            options = [
                [number, name, value]
                for number, (size, decay) in enumerate(groups[rank])
                for name, value in (("params", size), ("weight_decay", decay))
            ]
            what = {"options": options if count == 1 else [], **REDUCED}
            found += audit.feed(rank, replica(count, (1, bias[rank]), (3, 4), **what))
    (finding,) = found
    assert "bias; the optimizers' weight_decay is 0 on rank 0, 0.5 on rank 1" in finding.summary


def test_options_that_have_not_told_yet_are_a_warning() -> None:
    steps: list[Step] = [
        (1, [_options(), _options()], [1, 1]),
        (2, [None, {"lr": 0.01}], [2, 2]),
    ]
    (finding,) = _judge(*steps, **REDUCED)
    assert (finding.kind, finding.severity, finding.step) == ("parameters-differ", "warning", 2)
    assert "lr is 0.1 on rank 0, 0.01 on rank 1" in finding.summary
    assert _judge(*steps) == []  # each for itself, as in a search
    assert _judge(*steps, exchanged={"after": 1, "point_to_point": 1}) == []  # parts of a model


def test_how_an_optimizer_computes_is_no_option_that_matters() -> None:
    assert _judge((1, [_options(fused=True), _options(fused=None)], [1, 1]), **REDUCED) == []


def test_options_that_differed_for_a_while_without_effect_are_none() -> None:
    steps: list[Step] = [
        (1, [_options(), _options(lr=0.2)], [1, 1]),
        (2, [None, {"lr": 0.1}], [1, 1]),
    ]
    assert _judge(*steps, **REDUCED) == []
