"""What `why` says of ranks that others wait for while they wait for no rank."""

from lab.diagnose.why import diagnose
from tests.diagnose.seen import Json, call, evidence, frames, rank

STEP = [call(n) for n in range(1, 5)]
POLLS = "while not done(): time.sleep(1)"
TIMED_OUT = "[gloo/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete"


def past() -> Json:
    return rank(STEP, waits=True)


def elsewhere(line: int = 20, share: float = 0.0) -> Json:
    return rank(STEP[:3], stack=frames(line, code=POLLS), share=share)


def test_who_is_past_the_line_at_which_most_wait_is_told_of_and_not_innocent() -> None:
    """They may wait for what it has left out, by other means than a process group."""
    found = diagnose(evidence([elsewhere(), past(), elsewhere(), elsewhere()]))
    assert (found.kind, found.ranks, found.line, found.innocent) == ("unknown", (), 20, ())
    assert found.summary.startswith(
        "rank 1 (node1, local 0) is past where ranks 0, 2, 3 are (rank 0 waits at train.py:20 "
    )
    assert "and waits for them in all_reduce #4" in found.summary
    assert len(found.evidence) == 4


def test_most_who_compute_at_one_line_are_late_but_nobody_is_innocent() -> None:
    ranks = [elsewhere(share=1.0), past(), elsewhere(share=1.0)]
    found = diagnose(evidence(ranks))
    assert (found.kind, found.ranks, found.innocent) == ("busy-alone", (0, 2), ())


def test_few_who_wait_elsewhere_or_at_lines_of_their_own_are_late() -> None:
    found = diagnose(evidence([elsewhere(), past(), past(), elsewhere()]))
    assert (found.kind, found.ranks) == ("busy-alone", (0, 3))
    found = diagnose(evidence([elsewhere(20), past(), elsewhere(21)]))
    assert (found.kind, found.ranks) == ("busy-alone", (0, 2))


def test_most_who_have_left_their_groups_do_not_wait_for_the_others() -> None:
    left = [elsewhere(), elsewhere()]
    for one in left:
        one["groups"][0]["left"] = True
    found = diagnose(evidence([left[0], past(), left[1]]))
    assert (found.kind, found.ranks) == ("extra-collective", (1,))
    found = diagnose(evidence([left[0], past(), left[1], past()]))
    assert (found.kind, found.ranks) == ("ended-early", (0, 2))


def test_who_computes_nothing_is_said_to_wait() -> None:
    found = diagnose(evidence([past(), elsewhere(), past()]))
    assert "is 1 collective behind: it waits at train.py:20 (main)" in found.summary
    found = diagnose(evidence([past(), elsewhere(share=1.0), past()]))
    assert "is 1 collective behind: it is at train.py:20 (main)" in found.summary
    assert "a loop may not" in (found.cure or "")


def test_where_a_time_out_has_ended_it_the_cure_speaks_of_it() -> None:
    ended = rank(STEP, waits=True)
    chain = [{"kind": "RuntimeError", "message": TIMED_OUT}]
    ended["exception"] = {"kind": "RuntimeError", "message": TIMED_OUT, "chain": chain}
    ended["exception"] |= {"file": "train.py", "line": 10}
    ranks = [ended, elsewhere(), past()]
    found = diagnose(evidence(ranks, because="failure"))
    assert (found.kind, found.ranks) == ("busy-alone", (1,))
    assert "the time-out of the process group, which has ended this" in (found.cure or "")
    assert "has ended this" not in (diagnose(evidence(ranks)).cure or "")


def asks(function: str, *keys: str) -> Json:
    asking = rank(STEP[:3], stack=frames(8, code=f"store.{function}(key)"))
    asking["threads"][0]["store"] = {"function": function, "keys": list(keys)}
    return asking


def test_the_key_of_a_store_that_a_rank_waits_for_is_told() -> None:
    """Anybody may have to set it."""
    found = diagnose(evidence([past(), asks("get", "Seed"), past()]))
    assert (found.kind, found.ranks, found.line) == ("busy-alone", (1,), 8)
    assert "it waits in store.get() for the key 'Seed' at train.py:8 (main)" in found.summary
    assert found.innocent == ()
    assert "which rank sets this key" in (found.cure or "")
    found = diagnose(evidence([past(), asks("wait", "a", "b"), asks("wait", "a", "b")]))
    assert (found.kind, found.ranks) == ("unknown", ())
    assert "rank 1 waits in store.wait() for the keys 'a', 'b' at train.py:8" in found.summary
