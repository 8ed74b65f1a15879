"""Learning rates by step."""

import pytest

from lab.training.options import Options
from lab.training.schedule import scaled_lr, schedule_factor


@pytest.mark.parametrize(
    ("schedule", "factors"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", [0.5, 1, 1, 0.8535534, 0.5, 0.1464466]),
    ],
)
def test_rises_and_falls(schedule: str, factors: list[float]) -> None:
    options = Options(schedule=schedule, warmup=2)  # type: ignore[arg-type]  # the parameter's
    found = [schedule_factor(options, step, 6) for step in range(6)]
    assert found == pytest.approx(factors)


def test_a_warmup_longer_than_the_training_only_rises() -> None:
    options = Options(schedule="cosine", warmup=10)
    assert [schedule_factor(options, step, 3) for step in range(3)] == pytest.approx(
        [0.1, 0.2, 0.3]
    )


@pytest.mark.parametrize(("scaling", "lr"), [("none", 0.5), ("linear", 2.0), ("sqrt", 1.0)])
def test_scales_with_the_world_size(scaling: str, lr: float) -> None:
    assert scaled_lr(Options(lr=0.5, scale_lr=scaling), 4) == lr  # type: ignore[arg-type]  # as above
