"""When a run counts as stalled: by pulses that are played, on a clock that is set."""

from typing import Any

import pytest

from lab.node.stall import StallWatch, is_progress

LIMIT = 10.0


def pulse(
    cpu_s: float, seq: int = 1, *, busy: bool = False, pending: int = 0, at: str = "a.py:1"
) -> dict[str, Any]:
    return {
        "process": {"cpu_s": cpu_s, "busy": busy},
        "probe": {"seqs": {"0": seq}, "pending": pending, "at": at},
    }


class Clock:
    """Plays pulses, one a second, and says when the watch called it a stall."""

    def __init__(self, seconds: int = 40) -> None:
        self.watch = StallWatch(LIMIT, 0.0)
        self.seconds = seconds

    def play(self, *ranks: Any, silent: frozenset[int] = frozenset()) -> list[int]:
        """Each rank: a function of the second."""
        stalls = []
        for now in range(self.seconds):
            pulses = {rank: told(now) for rank, told in enumerate(ranks) if rank not in silent}
            self.watch.feed(pulses, set(silent), float(now))
            if self.watch.stalled_for(float(now)) is not None:
                stalls.append(now)
        return stalls


def waits(now: int) -> dict[str, Any]:
    return pulse(1.0, pending=1)


def computes(now: int) -> dict[str, Any]:
    return pulse(float(now), busy=True, at=f"a.py:{now}")


def test_ranks_that_compute_for_long_without_a_collective_are_no_stall() -> None:
    assert Clock().play(computes, computes) == []


def test_a_rank_that_waits_for_one_that_computes_is_told_once() -> None:
    assert Clock().play(waits, computes) == [10]


def test_ranks_that_use_no_processor_are_a_stall() -> None:
    assert Clock().play(lambda now: pulse(1.0), lambda now: pulse(1.0)) == [10]


def test_a_rank_that_spins_in_a_collective_waits() -> None:
    spins = lambda now: pulse(float(now), busy=True, pending=1)  # noqa: E731 - NCCL does
    assert Clock().play(spins, computes) == [10]


def test_a_collective_in_the_background_of_a_computation_is_no_wait() -> None:
    overlaps = lambda now: pulse(float(now), busy=True, pending=1, at=f"a.py:{now}")  # noqa: E731
    assert Clock().play(overlaps, overlaps) == []


def test_a_busy_machine_on_which_ranks_get_little_time_is_no_stall() -> None:
    starved = lambda now: pulse(now * 0.001, busy=True, at="a.py:1")  # noqa: E731
    assert Clock().play(starved, starved) == []


def test_a_rank_that_looks_for_something_now_and_then_waits() -> None:
    looks = lambda now: pulse(now * 0.01, busy=now % 3 == 0)  # noqa: E731
    assert len(Clock().play(looks, computes)) == 1


def test_a_probe_that_is_late_once_is_no_progress() -> None:
    def late(now: int) -> dict[str, Any]:
        return {**waits(now), "probe": None} if now == 5 else pulse(1.0)

    assert Clock().play(late, computes) == [10]


def test_a_wait_begins_when_it_begins() -> None:
    later = lambda now: computes(now) if now < 15 else pulse(15.0, pending=1)  # noqa: E731
    assert Clock().play(later, computes) == [25]


def test_collectives_are_progress() -> None:
    slow = lambda now: pulse(1.0, seq=now // 8, pending=1)  # noqa: E731
    assert Clock().play(slow, slow) == []


@pytest.mark.parametrize("every", [3, 9])
def test_output_is_progress_and_ends_a_stall(every: int) -> None:
    clock = Clock(1)
    stalls = []
    for now in range(60):
        clock.watch.feed({0: waits(now)}, set(), float(now))
        if now < 30 and now % every == 0:
            clock.watch.progress(float(now))
        if clock.watch.stalled_for(float(now)) is not None:
            stalls.append(now)
    last = max(now for now in range(30) if now % every == 0)
    assert stalls == [last + 10]


def test_a_node_that_does_not_answer_waits() -> None:
    assert Clock().play(computes, computes, silent=frozenset({1})) == [10]


def test_a_look_that_nobody_answers_makes_nothing_forgotten() -> None:
    clock = Clock()
    stalls = []
    for now in range(20):
        if now == 5:
            clock.watch.hear_nobody({0, 1}, float(now))
        else:
            clock.watch.feed({0: waits(now), 1: computes(now)}, set(), float(now))
        if clock.watch.stalled_for(float(now)) is not None:
            stalls.append(now)
    assert stalls == [10]


def test_where_nobody_answers_for_long_all_wait() -> None:
    watch = StallWatch(LIMIT, 0.0)
    stalls = []
    for now in range(40):
        watch.hear_nobody({0, 1}, float(now))
        if watch.stalled_for(float(now)) is not None:
            stalls.append(now)
    assert stalls == [20]


def test_a_rank_that_ended_on_a_silent_node_waits_for_nobody() -> None:
    watch = StallWatch(LIMIT, 0.0)
    watch.feed({0: computes(0)}, {1}, 0.0)
    for now in range(1, 40):
        watch.feed({0: computes(now)}, set(), float(now))
        assert watch.stalled_for(float(now)) is None


def test_who_waits_for_the_user_is_not_stalled() -> None:
    clock = Clock()
    clock.watch.hold(True, 0.0)
    assert clock.play(waits, waits) == []
    clock.watch.hold(False, 40.0)
    assert clock.watch.stalled_for(45.0) is None
    assert clock.watch.stalled_for(50.0) == 10.0


def test_a_rank_that_has_ended_waits_for_nobody() -> None:
    clock = Clock()
    for now in range(40):
        clock.watch.feed({0: computes(now), **({1: waits(now)} if now < 5 else {})}, set(), now)
        assert clock.watch.stalled_for(float(now)) is None


def test_a_look_comes_when_it_would_be_too_long_and_not_before_its_time() -> None:
    watch = StallWatch(LIMIT, 0.0)
    assert watch.look_at == watch.interval
    watch.progress(5.0)
    assert watch.look_at == 5.0 + watch.interval
    for now in (6.0, 7.0, 15.5):
        watch.feed({0: waits(0)}, set(), now)
    assert watch.look_at == 16.0  # ten seconds after it was first seen to wait


def test_who_comes_to_the_rendezvous_makes_progress_and_who_stays_there_does_not() -> None:
    def joins(since: int) -> Any:
        def told(now: int) -> dict[str, Any]:
            seen = pulse(1.0)
            return {**seen, "probe": {**seen["probe"], "seqs": {}, "joins": now >= since}}

        return told

    clock = Clock()
    assert clock.play(joins(0), joins(8)) == [8 + int(LIMIT)]


@pytest.mark.parametrize(
    ("output", "news"),
    [
        ("step 1\n", True),
        ("\n", True),
        (
            "[W1130 14:23:15.370056887 socket.cpp:764] [c10d] The client socket has failed to "
            "connect to [localhost]:29511 (errno: 99 - Cannot assign requested address).\n",
            False,
        ),
        (
            "[W1130 14:23:15.370056887 socket.cpp:764] [c10d] The client socket has failed\n"
            "[E1130 14:24:15.370056887 socket.cpp:1033] [c10d] The client socket has timed out\n",
            False,
        ),
        ("[rank0]:[E1130 16:02:36.370056887 socket.cpp:1028] [c10d] The client socket\n", False),
        ("[W1130 14:23:15.370056887 socket.cpp:764] [c10d] The client socket\nstep 1\n", True),
        ("[W1130 14:23:15.370056887 ProcessGroupGloo.cpp:1] [c10d] no word of waiting\n", True),
    ],
)
def test_that_torch_still_tries_to_connect_is_no_progress(output: str, news: bool) -> None:
    assert is_progress(output) is news
