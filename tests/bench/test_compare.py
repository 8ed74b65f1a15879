"""Medians, quartiles and ratios of measurements."""

from lab.bench.compare import compared, fastest, timing


def test_times_are_milliseconds_with_their_quartiles() -> None:
    row = timing([0.005, 0.001, 0.003, 0.002, 0.004])
    assert (row["ms"], row["q1"], row["q3"]) == (3, 2, 4)
    assert row["all ms"] == [5, 1, 3, 2, 4]


def test_one_measurement_has_no_spread() -> None:
    row = timing([0.25])
    assert row["ms"] == row["q1"] == row["q3"] == 250


def test_ratios_are_of_what_was_measured_side_by_side() -> None:
    """Pair by pair a slow minute cancels out; the ratio of the medians would be 2 / 10."""
    taken = {"ours": [1.0, 2.0, 20.0], "theirs": [10.0, 4.0, 10.0]}
    ours, theirs = compared(taken, {"theirs": "theirs"})
    assert ours["step"] == "ours"
    assert ours["/ theirs"] == 0.5
    assert theirs["/ theirs"] == 1


def test_the_fastest_has_the_least_median() -> None:
    taken = {"steady": [3.0, 3.0, 3.0], "erratic": [1.0, 4.0, 4.0], "not asked": [1.0, 1.0, 1.0]}
    assert fastest(taken, ["steady", "erratic"]) == "steady"
