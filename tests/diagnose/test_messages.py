"""Whom `why` names where ranks wait for messages: by what each has begun to send and to receive."""

from lab.diagnose.finding import Finding
from lab.diagnose.why import diagnose
from tests.diagnose.seen import C10D, Json, call, evidence, frames, rank

BARRIER = [call(1, "barrier", 30)]
EARLIER = [call(1, "barrier", 5)]


def lane(peer: int | None, sent: int = 0, received: int = 0, tag: int = 0) -> Json:
    return {"group": "0", "peer": peer, "tag": tag, "sent": sent, "received": received}


def done(*messages: Json) -> Json:
    """A rank that has come to the barrier at the end."""
    return rank([*EARLIER, call(2, "barrier", 30)], waits=True, messages=list(messages))


def in_call(function: str, line: int, *messages: Json, **arguments: int) -> Json:
    """A rank in a send or recv that returns when it is done."""
    inner, own = frames(line, (C10D, function))
    stack = [inner | {"arguments": {"group": "0", **arguments}}, own]
    return rank(EARLIER, stack=stack, messages=list(messages))


def handles(line: int, *messages: Json) -> Json:
    """A rank in `work.wait()`, which a stack has no frame of."""
    return rank(EARLIER, stack=frames(line, code="work.wait()"), messages=list(messages))


def innocent(found: Finding) -> set[int]:
    return {number for one in found.innocent for number in one.ranks}


def from_any(received: int) -> Json:
    return in_call("recv", 10, lane(None, received=received))


def test_who_sent_too_few_is_named_where_another_receives_from_any_rank() -> None:
    found = diagnose(evidence([from_any(3), done(lane(0, sent=1)), done(), done(lane(0, sent=1))]))
    assert (found.kind, found.ranks, found.line) == ("deadlock", (2,), 30)
    assert "has sent rank 0 fewer messages than ranks 1, 3: 0, where they have" in found.summary
    assert "rank 0 waits for rank 2 in recv from any rank at train.py:10" in found.summary
    assert innocent(found) == {0, 1, 3}


def test_the_same_of_an_irecv_that_is_waited_for_later() -> None:
    takes = handles(10, lane(None, received=3))
    found = diagnose(evidence([takes, done(lane(0, sent=1)), done(), done(lane(0, sent=1))]))
    assert (found.kind, found.ranks) == ("deadlock", (2,))
    assert "irecv from any rank" in found.summary


def test_nobody_is_named_or_innocent_where_no_count_tells_who_should_send() -> None:
    for counts in ((1, 1, 1), (3, 2, 1), (0, 0, 1)):
        senders = [done(lane(0, sent=count)) for count in counts]
        found = diagnose(evidence([from_any(sum(counts) + 1), *senders]))
        assert (found.kind, found.ranks, found.line) == ("unknown", (), 10)
        assert innocent(found) == set()
        assert f"rank 3 has begun to send rank 0 {counts[2]} message" in " ".join(found.evidence)


def test_who_has_not_come_as_far_is_the_one_who_may_still_send() -> None:
    late = rank(EARLIER, stack=frames(20, code="load()"))
    found = diagnose(evidence([from_any(2), done(lane(0, sent=1)), done(), late]))
    assert (found.kind, found.ranks, found.line) == ("busy-alone", (3,), 20)


def test_who_takes_a_message_that_is_on_its_way_waits_for_nobody() -> None:
    found = diagnose(evidence([from_any(1), done(lane(0, sent=1)), done(), done()]))
    assert "recv from any rank at train.py:10 (main): nothing tells for whom" in found.summary


def test_a_circle_of_others_comes_before_who_waits_for_any_of_them() -> None:
    one, other = (in_call("recv", 12, lane(3 - n, received=1), src=3 - n) for n in (1, 2))
    found = diagnose(evidence([from_any(1), one, other]))
    assert (found.kind, found.ranks) == ("deadlock", (1, 2))


def ring(rank_of: int, size: int, sent: int, received: int) -> list[Json]:
    return [
        lane((rank_of + 1) % size, sent=sent),
        lane((rank_of - 1) % size, received=received),
    ]


def test_who_has_left_out_a_receive_is_named_where_all_others_have_made_as_many() -> None:
    others = [done(*ring(n, 4, 4, 4)) for n in (0, 1)]
    waits, left_out = handles(20, *ring(2, 4, 4, 4)), done(*ring(3, 4, 4, 3))
    found = diagnose(evidence([*others, waits, left_out]))
    assert (found.kind, found.ranks, found.line) == ("deadlock", (3,), 30)
    assert "has received fewer messages than ranks 0, 1: 3" in found.summary
    assert innocent(found) == {0, 1, 2}
    assert "isend" not in (found.cure or "")


def test_who_has_left_out_a_send_is_named_likewise() -> None:
    others = [done(*ring(n, 4, 4, 4)) for n in (1, 2)]
    waits, left_out = handles(20, *ring(0, 4, 4, 4)), done(*ring(3, 4, 3, 4))
    found = diagnose(evidence([waits, *others, left_out]))
    assert (found.kind, found.ranks) == ("deadlock", (3,))
    assert "has sent fewer messages than ranks 1, 2: 3" in found.summary


def test_who_never_sends_is_not_said_to_have_sent_too_few() -> None:
    """The end of a pipeline: it may be the other one that is wrong to wait for it."""
    waits = in_call("recv", 12, lane(1, sent=4), lane(3, received=1), src=3)
    middle = [done(lane(n + 1, sent=4), lane(n - 1, received=4)) for n in (1, 2)]
    found = diagnose(evidence([waits, *middle, done(lane(2, received=4))]))
    assert (found.kind, found.ranks) == ("deadlock", (0, 3))


def test_a_wrong_destination_is_named() -> None:
    ranks = [
        handles(10, *ring(0, 4, 2, 2)),
        handles(10, *ring(1, 4, 2, 2)),
        handles(10, lane(1, sent=1, received=1)),
        handles(10, *ring(3, 4, 1, 1)),
    ]
    found = diagnose(evidence(ranks))
    assert (found.kind, found.ranks) == ("deadlock", (2,))
    assert "rank 2 sends to rank 1, which receives nothing from it, and rank 3" in found.summary
    assert "most others send to rank (their own) + 1, here rank 3" in found.summary
    assert innocent(found) == {0, 1, 3}
    assert "dst" in (found.cure or "")


def test_a_wrong_source_is_named_with_the_line_of_the_receive() -> None:
    ranks = [
        in_call("send", 18, lane(1, sent=2), dst=1),
        in_call("send", 18, lane(0, received=1), lane(2, sent=1), dst=2),
        in_call("recv", 15, lane(0, received=1), src=0),
        in_call("recv", 15, lane(2, received=1), src=2),
    ]
    found = diagnose(evidence(ranks))
    assert (found.kind, found.ranks, found.line) == ("deadlock", (2,), 15)
    assert "most others receive from rank (their own) - 1, here rank 1" in found.summary


def test_a_wrong_order_of_three_is_no_wrong_peer() -> None:
    """Rank 0 sends to 1 before 2; 1 first receives from 2, and 2 from 0: all are right alone."""
    ranks = [
        in_call("send", 10, lane(1, sent=1), dst=1),
        in_call("recv", 11, lane(2, received=1), src=2),
        in_call("recv", 12, lane(0, received=1), src=0),
    ]
    found = diagnose(evidence(ranks))
    assert (found.kind, found.ranks) == ("deadlock", (0, 1, 2))


def test_messages_that_are_begun_need_no_isend() -> None:
    ranks = [handles(40, lane(1 - n, sent=1, received=2)) for n in range(2)]
    found = diagnose(evidence(ranks))
    assert (found.kind, found.ranks) == ("deadlock", (0, 1))
    assert "isend" not in (found.cure or "")


def in_group(group: str, seq: int, line: int) -> Json:
    calls = [call(seq, "barrier", line) | {"group": group}]
    found = rank(calls, waits=True)
    found["groups"] = [{"name": name, "backend": "gloo", "ranks": None} for name in ("0", "all")]
    return found


def test_who_waits_in_another_group_of_the_same_ranks_than_most_is_named() -> None:
    most = [in_group("all", 2, 9) for _ in range(3)]
    found = diagnose(evidence([*most, in_group("0", 3, 12)]))
    assert (found.kind, found.ranks, found.line) == ("deadlock", (3,), 12)
    assert "where ranks 0-2 wait in barrier #2 [4] float32 of group all" in found.summary
    found = diagnose(evidence([*most[:2], in_group("0", 3, 12), in_group("0", 3, 12)]))
    assert found.kind == "deadlock"
    assert len(found.ranks) == 2


def test_who_only_waits_for_a_circle_is_no_part_of_it() -> None:
    """Rank 1 is in the broadcast that rank 3 does not come to; rank 0 has gone on from it."""
    shared = call(2, "broadcast", 8, ago=10.0)
    gone_on = [rank([*EARLIER, shared, call(3, "barrier", 30)], waits=True) for _ in range(2)]
    waits = rank([*EARLIER, shared], waits=True)
    receives = in_call("recv", 7, lane(0, received=1), src=0)
    found = diagnose(evidence([gone_on[0], waits, gone_on[1], receives]))
    assert (found.kind, found.ranks) == ("deadlock", (0, 3))
    assert innocent(found) == {1, 2}


def test_nothing_is_made_of_the_counts_of_a_rank_that_has_not_told_its_own() -> None:
    silent = done() | {"source": "py-spy"}
    found = diagnose(evidence([from_any(3), done(lane(0, sent=1)), silent, done(lane(0, sent=1))]))
    assert found.ranks == ()
    ranks = [
        handles(10, *ring(0, 4, 2, 2)),
        handles(10, *ring(1, 4, 2, 2)),
        handles(10, lane(1, sent=1, received=1)),
        handles(10, *ring(3, 4, 1, 1)) | {"source": "py-spy"},
    ]
    assert diagnose(evidence(ranks)).ranks != (2,)


def test_who_takes_messages_of_anybody_asks_for_each() -> None:
    """The wrong destination of before, but for the receiver, which takes whatever comes."""
    ranks = [
        handles(10, *ring(0, 4, 2, 2)),
        handles(10, *ring(1, 4, 2, 2), lane(None, received=3)),
        handles(10, lane(1, sent=1, received=1)),
        handles(10, *ring(3, 4, 1, 1)),
    ]
    assert diagnose(evidence(ranks)).kind != "deadlock"
