"""The judge of hangs on what was seen: who is named, who is not, and when nobody is."""

import copy
from typing import Any

import pytest

from lab.diagnose.finding import Finding
from lab.diagnose.why import diagnose
from lab.diagnose.why.aborted.room import sent
from lab.diagnose.why.evidence import Collective
from tests.diagnose.seen import C10D, NOW, Json, call, evidence, frames, rank

STEP = [call(n) for n in range(1, 5)]


def named(finding: Finding) -> tuple[str, tuple[int, ...], int | None]:
    return finding.kind, finding.ranks, finding.line


def waiting(**changes: Any) -> Json:
    """A rank that waits in the fourth call."""
    return rank(STEP, waits=True, **changes)


def late(line: int = 20, **changes: Any) -> Json:
    """A rank that has called three, and is elsewhere."""
    return rank(STEP[:3], **{"stack": frames(line), **changes})


# Nodes and networks


def test_a_paused_process_is_named_with_the_line_it_stopped_at() -> None:
    found = diagnose(evidence([waiting(), late(state="T"), waiting()]))
    assert named(found) == ("paused", (1,), 20)
    assert found.innocent[0].ranks == (0, 2)


def test_a_node_is_dead_when_neither_it_nor_its_network_answers() -> None:
    gone = {"alive": False, "answered": False}
    sees = {"peers": {"node1": "timeout"}}
    silent = rank(source=None, stack=None)
    found = diagnose(evidence([waiting(), silent], nodes={"node1": gone, "node0": sees}))
    assert (found.kind, found.ranks, found.nodes) == ("dead", (1,), ("node1",))


def test_a_node_is_frozen_when_its_network_answers_and_it_does_not() -> None:
    gone = {"alive": False, "answered": False}
    sees = {"peers": {"node1": "refused"}}  # by its kernel
    found = diagnose(evidence([waiting(), rank()], nodes={"node1": gone, "node0": sees}))
    assert (found.kind, found.ranks) == ("paused", (1,))
    assert "frozen" in found.summary


def test_a_node_that_is_alive_and_out_of_reach_is_cut_off() -> None:
    silent = {"alive": True, "answered": False}
    sees = {"peers": {"node1": "its address is not known here"}}
    found = diagnose(evidence([waiting(), rank()], nodes={"node1": silent, "node0": sees}))
    assert (found.kind, found.ranks, found.nodes) == ("partitioned", (1,), ("node1",))


def test_where_no_node_answers_none_is_named() -> None:
    silent = {f"node{n}": {"alive": n > 0, "answered": False} for n in range(3)}
    busy = rank(share=1.0, source=None)  # when it was last seen
    found = diagnose(evidence([busy, busy | {"node": None}, rank(source=None)], nodes=silent))
    assert (found.kind, found.ranks) == ("unknown", ())
    assert "none of the nodes has answered in time" in found.summary


def test_a_name_that_is_not_looked_up_in_time_is_no_partition() -> None:
    unsure = "nobody says what its name node0 stands for"
    sees = {"peers": {"node0": unsure}}
    silent = {"alive": True, "answered": False}
    starts = rank(source=None, stack=None)
    found = diagnose(evidence([starts, waiting()], nodes={"node0": silent, "node1": sees}))
    assert found.kind == "unknown"
    answers = {"peers": {"node1": "ok"}}
    found = diagnose(evidence([late(), waiting()], nodes={"node0": answers, "node1": sees}))
    assert found.kind == "busy-alone"
    answers = {"peers": {"node1": unsure}}  # and so from both sides
    found = diagnose(evidence([late(), waiting()], nodes={"node0": answers, "node1": sees}))
    assert found.kind == "partitioned"


def test_a_node_whose_ranks_have_ended_needs_not_answer() -> None:
    ended = rank(ended={"code": 0, "signal": None})
    found = diagnose(evidence([waiting(), ended], nodes={"node1": {"answered": False}}))
    assert (found.kind, found.ranks) == ("ended-early", (1,))


def test_a_process_that_is_gone_is_dead() -> None:
    found = diagnose(evidence([waiting(), rank(state="gone")]))
    assert (found.kind, found.ranks) == ("dead", (1,))


def test_the_node_that_no_other_reaches_is_cut_off() -> None:
    peers = {
        "node0": {"peers": {"node1": "ok", "node2": "timeout"}},
        "node1": {"peers": {"node0": "ok", "node2": "timeout"}},
        "node2": {"peers": {"node0": "timeout", "node1": "timeout"}},
    }
    found = diagnose(evidence([waiting(), waiting(), waiting()], nodes=peers))
    assert (found.kind, found.ranks, found.nodes) == ("partitioned", (2,), ("node2",))


def test_of_one_broken_pair_both_sides_are_named() -> None:
    peers = {"node0": {"peers": {"node1": "timeout", "node2": "ok"}}}
    found = diagnose(evidence([waiting(), waiting(), waiting()], nodes=peers))
    assert (found.kind, found.ranks) == ("partitioned", (0, 1))
    assert "node0 and node1 cannot reach each other" in found.summary


def test_a_pair_of_which_one_reaches_the_other_is_not_cut() -> None:
    peers = {
        "node0": {"peers": {"node1": "timeout"}},
        "node1": {"peers": {"node0": "ok"}},
    }
    found = diagnose(evidence([waiting(), waiting()], nodes=peers))
    assert found.kind == "unknown"
    assert found.evidence[-1] == "node0 does not reach node1: timeout"


def test_a_port_that_nobody_listens_on_is_no_partition() -> None:
    peers = {"node0": {"peers": {"node1": "refused"}}}
    assert diagnose(evidence([waiting(), late()], nodes=peers)).kind == "busy-alone"


# Lists of collectives


def test_two_against_two_nobody_is_guilty() -> None:
    ones = [rank([call(1, "barrier", 8)], waits=True) for _ in range(2)]
    others = [rank([call(1, line=9)], waits=True) for _ in range(2)]
    found = diagnose(evidence([*ones, *others]))
    assert named(found) == ("mismatched-collective", (0, 1, 2, 3), None)
    assert "nothing tells which of them is right" in found.evidence[-1]


def test_other_shapes_at_the_same_line_are_a_mismatch_not_an_extra_call() -> None:
    found = diagnose(
        evidence(
            [
                rank([*STEP, call(5)], waits=True),
                rank([*STEP, call(5)], waits=True),
                rank([*STEP, call(5, shape=(3,))], waits=True),
            ]
        )
    )
    assert named(found) == ("mismatched-collective", (2,), 10)
    assert "[3] float32" in found.summary


def test_a_call_is_missed_that_came_in_every_round_before() -> None:
    loop = [call(n, line=10 + n % 2) for n in range(1, 9)]
    # Rank 0 alone goes on as before, but the two who differ are the majority: both know the call.
    skipped = [*loop, call(9, line=10)]
    found = diagnose(
        evidence(
            [
                rank([*loop, call(9, line=11)], waits=True),
                rank(skipped, waits=True, stack=frames(30)),
                rank([*loop, call(9, line=11)], waits=True),
            ]
        )
    )
    # The tensors go together, and nothing else follows: the calls meet, whatever their lines.
    assert found.kind != "skipped-collective"


def lines_of(*lines: int) -> list[Json]:
    """All-reduces of one shape, from these lines."""
    return [call(n, line=line) for n, line in enumerate(lines, start=1)]


def test_a_call_is_missed_though_others_of_its_shape_have_taken_its_place() -> None:
    usual = rank(lines_of(6, 9, 6, 9, 6, 9, 6, 9), waits=True)
    skips = rank([*lines_of(6, 9, 6, 9, 6, 6, 6), call(8, op="barrier", line=10)], waits=True)
    finding = diagnose(evidence([usual, skips]))
    assert named(finding) == ("skipped-collective", (1,), 6)
    assert "skipped all_reduce #6" in finding.summary
    assert (
        finding.evidence[0] == "up to #5 the ranks' collectives of the default group are the same"
    )

    finding = diagnose(evidence([skips, usual, skips]))
    assert named(finding) == ("extra-collective", (1,), 9)


def over(*lines: int) -> Json:
    """A rank that has ended well after these."""
    end = {"code": 0, "signal": None}
    return rank(lines_of(*lines), ended=end, process={"state": "gone"})


@pytest.mark.parametrize("world", [2, 4])
def test_a_line_that_only_one_rank_has_called_is_one_too_many_when_the_others_are_over(
    world: int,
) -> None:
    validates = rank(lines_of(12, 14, 12, 14, 18, 14, 12, 14, 18), waits=True)
    others = [over(12, 14, 12, 14, 12, 14, 12, 14) for _ in range(1, world)]
    finding = diagnose(evidence([validates, *others]))
    assert named(finding) == ("extra-collective", (0,), 18)
    assert finding.evidence[1].startswith("an earlier one, #5 at train.py:18")

    # Who has called that line has done it less often.
    others = [over(12, 14, 18) for _ in range(1, world)]
    late = diagnose(evidence([validates, *others]))
    assert (late.kind, late.ranks) == ("ended-early", tuple(range(1, world)))


def test_a_round_more_than_most_is_of_the_rank_that_makes_it_however_far_the_others_are() -> None:
    more = rank(lines_of(12, 12, 12), waits=True)
    leaves = rank(lines_of(12, 12), stack=frames(40, (C10D, "destroy_process_group")))
    has_left = rank(lines_of(12, 12), stack=frames(40))
    has_left["groups"][0]["left"] = True
    for others in ([over(12, 12)] * 3, [leaves] * 3, [has_left, leaves, over(12, 12)]):
        finding = diagnose(evidence([more, *copy.deepcopy(others)]))
        assert named(finding) == ("extra-collective", (0,), 12)
        assert "once more than ranks 1-3, which are over after 2 calls" in finding.summary
        assert not finding.innocent


def test_who_has_left_its_groups_does_not_come_to_what_the_others_wait_in() -> None:
    leaves = rank(STEP[:3], stack=frames(50))
    leaves["groups"][0]["left"] = True
    finding = diagnose(evidence([waiting(), leaves, waiting()]))
    assert (finding.kind, finding.ranks) == ("ended-early", (1,))
    assert finding.line == waiting()["collectives"][-1]["site"]["line"]
    assert "has left its process groups, and is at train.py:50" in finding.summary
    assert finding.summary.endswith("which it has not called")


def test_of_two_ranks_a_last_line_may_be_one_too_many_or_left_out() -> None:
    def ended(waiting: int, over_: int) -> Finding:
        last = [rank(lines_of(12, 14, 30), waits=True) for _ in range(waiting)]
        return diagnose(evidence([*last, *(over(12, 14) for _ in range(over_))]))

    assert ended(1, 1).kind == ended(2, 1).kind == "ended-early"
    assert named(ended(1, 2)) == ("extra-collective", (0,), 30)


def test_branches_with_the_same_call_are_not_where_the_lists_come_apart() -> None:
    one = [call(n, line=5 + n % 2) for n in range(1, 7)]
    other = [call(n, line=7 + n % 2) for n in range(1, 7)]
    last = call(7, line=20), call(7, op="barrier", line=20)
    finding = diagnose(evidence([rank([*one, last[0]], waits=True), rank([*other, last[1]])]))
    assert finding.kind == "mismatched-collective"
    assert "as collective #7" in finding.summary
    before = "up to #6 the ranks' collectives of the default group go together, though not all are "
    assert finding.evidence[0] == f"{before}of the same lines"


def test_a_third_side_is_seen_behind_two_branches_of_one_call() -> None:
    def loop(line: int, *last: Json) -> Json:
        before = [call(n, op="reduce", line=line) for n in range(1, 6)]
        return rank([*before, *(last or (call(6, op="reduce", line=line),))], waits=True)

    skips = loop(15, call(6, op="barrier", line=16))
    finding = diagnose(evidence([loop(13), loop(15), loop(15), skips]))
    assert named(finding) == ("extra-collective", (3,), 16)


def test_ranks_that_broadcast_in_turn_are_not_where_the_lists_come_apart() -> None:
    one = [call(n, op="broadcast", line=5 if n % 2 else 7) for n in range(1, 7)]
    other = [call(n, op="broadcast", line=7 if n % 2 else 5) for n in range(1, 7)]
    loads = frames(20, ("torch/utils/data/dataloader.py", "__next__"))
    waits = rank([*one, call(7, line=30)], waits=True)
    finding = diagnose(evidence([waits, rank(other, stack=loads)]))
    assert named(finding) == ("data-loader", (1,), 20)


def test_a_broadcast_from_a_line_that_no_other_rank_has_called_is_one_too_many() -> None:
    """Rank 0 evaluates through DDP, whose forward sends buffers."""

    def calls(*lines: int) -> list[Json]:
        ops = {14: "broadcast", 11: "broadcast", 15: "all_reduce"}
        told = enumerate(lines, start=1)
        return [call(n, ops[at], at, via="forward" if at < 15 else "backward") for n, at in told]

    evaluates = rank(calls(14, 15, 14, 15, 11, 14), waits=True)
    others = [rank(calls(14, 15, 14, 15, 14, 15), waits=True) for _ in range(2)]
    finding = diagnose(evidence([evaluates, *others]))
    assert named(finding) == ("extra-collective", (0,), 11)
    assert "model.module" in (finding.cure or "")


def test_a_first_number_that_is_not_recorded_any_more_is_said() -> None:
    ours = [call(n, "barrier" if n % 2 else "all_reduce", 10 + n % 2) for n in range(400, 410)]
    theirs = [call(n, "all_reduce" if n % 2 else "barrier", 11 - n % 2) for n in range(400, 410)]
    found = diagnose(
        evidence([rank(ours, waits=True), rank(ours, waits=True), rank(theirs, waits=True)])
    )
    assert found.ranks == (2,)
    assert "not recorded any more" in found.evidence[0]


def test_skipping_ddps_all_reduce_without_gradients_is_an_unused_parameter() -> None:
    def lists(last: Json) -> list[Json]:
        return [call(1, line=9, via="backward"), call(2, "barrier", 12), last]

    reduces = lists(call(3, line=9, via="backward"))
    goes_on = rank(lists(call(3, "barrier", 12)), waits=True, unused=["head.weight", "frozen"])
    others = [rank(reduces, waits=True, unused=["frozen"]) for _ in range(2)]
    found = diagnose(evidence([others[0], goes_on, others[1]]))
    assert named(found) == ("unused-parameter", (1,), 12)
    assert found.summary.endswith("; no gradient: head.weight")


# Ranks that are late


def test_who_waits_for_the_late_one_is_not_late_itself() -> None:
    waits_for_2 = rank(
        [call(1)],
        stack=[
            {
                "file": f"/site-packages/{C10D}",
                "line": 1,
                "function": "recv",
                "user": False,
                "arguments": {"src": 2, "group": "0"},
            },
            *frames(11),
        ],
    )
    found = diagnose(evidence([rank(STEP[:2], waits=True), waits_for_2, rank(STEP[:1])]))
    assert found.ranks == (2,)


def test_without_a_stack_the_late_rank_is_named_and_nothing_is_made_up() -> None:
    mute = rank(STEP[:3], source=None, error="ptrace is denied on this node", state="R")
    found = diagnose(evidence([waiting(), mute]))
    assert named(found) == ("unknown", (1,), None)
    assert "ptrace is denied" in found.summary


@pytest.mark.parametrize(
    "library", [(C10D, "all_reduce"), ("torch/autograd/graph.py", "_engine_run_backward")]
)
def test_a_rank_read_from_outside_in_the_same_call_is_not_said_to_be_late(
    library: tuple[str, str],
) -> None:
    outside = rank(source="py-spy", stack=frames(10, library))
    found = diagnose(evidence([waiting(), outside, waiting()]))
    assert found.kind == "unknown"
    found = diagnose(evidence([waiting(), outside, late(20)]))
    assert named(found) == ("busy-alone", (2,), 20)


def test_a_data_loader_in_the_main_thread_names_the_line_of_the_dataset() -> None:
    stack = [
        {"file": "data.py", "line": 7, "function": "Photos.__getitem__", "user": True},
        {
            "file": "/site-packages/torch/utils/data/dataloader.py",
            "line": 1,
            "function": "_BaseDataLoaderIter.__next__",
            "user": False,
        },
        *frames(20),
    ]
    found = diagnose(evidence([waiting(), late(), waiting()]))
    assert found.kind == "busy-alone"
    found = diagnose(evidence([waiting(), rank(STEP[:3], stack=stack), waiting()]))
    assert (found.kind, found.file, found.line) == ("data-loader", "data.py", 7)


def test_a_rank_waits_for_its_gpu_wherever_its_stack_is() -> None:
    """cudaStreamSynchronize, in `loss.item()`, spins."""
    spins = rank(
        STEP,
        waits=True,
        stack=frames(15, code="print(loss.item())"),
        share=1.0,
        state="R",
        backend="cuda:nccl",
    )
    found = diagnose(evidence([spins, late(backend="cuda:nccl")]))
    assert named(found) == ("busy-alone", (1,), 20)


def test_work_that_is_begun_and_not_waited_for_does_not_make_a_rank_wait() -> None:
    ahead = rank(STEP, waits=True, stack=frames(20, code="time.sleep(1000)"))
    found = diagnose(evidence([ahead, late(30)]))
    assert found.kind == "unknown"


@pytest.mark.parametrize("state", ["R", "S"])
def test_a_busy_rank_on_a_crowded_machine_is_not_called_idle(state: str) -> None:
    found = diagnose(evidence([waiting(), late(share=0.1, state=state)]))
    assert "no processor time" not in found.summary


# No hang


def test_collectives_that_move_are_no_hang() -> None:
    moving = waiting()
    moving["pulses"] = [
        {"time": NOW - 4, "cpu_s": 1.0, "seqs": {"0": 10}},
        {"time": NOW, "cpu_s": 2.0, "seqs": {"0": 14}},
    ]
    found = diagnose(evidence([moving, late()], because="asked"))
    assert (found.kind, found.severity, found.ranks) == ("slow", "warning", ())
    assert "began 4 collectives" in found.summary


def test_steps_that_always_take_long_are_no_hang() -> None:
    steps = [call(n, ago=100 - 20 * n) for n in range(1, 5)]  # 20 s each; the last 20 s ago
    found = diagnose(evidence([rank(steps, waits=True), rank(steps[:3], stack=frames(20))]))
    assert found.kind == "slow"
    assert found.summary.startswith("no hang: others wait for rank 1, but not longer than")
    steps[-1]["time"] = NOW - 50
    found = diagnose(evidence([rank(steps, waits=True), rank(steps[:3], stack=frames(20))]))
    assert named(found) == ("busy-alone", (1,), 20)


def test_who_asks_in_the_middle_of_a_step_is_told_of_no_hang() -> None:
    steps = [*STEP[:3], call(4, ago=3)]
    ranks = [rank(steps, waits=True), rank(steps[:3], stack=frames(20))]
    found = diagnose(evidence(ranks, because="asked"))
    assert found.kind == "slow"
    assert found.summary == "too early to tell: others have waited for rank 1 for 3.0 s"
    assert diagnose(evidence(ranks, because="stall")).kind == "busy-alone"


def test_all_ranks_that_compute_are_no_hang() -> None:
    ranks = [rank(STEP, stack=frames(20), share=0.9) for _ in range(3)]
    assert diagnose(evidence(ranks, because="asked")).kind == "slow"


def test_what_a_rank_did_before_does_not_tell_that_it_works_now() -> None:
    worked = [(NOW - 600, 5.0), (NOW - 8, 400.0), (NOW, 400.0)]
    pulses = [{"time": time, "cpu_s": cpu_s, "seqs": {}} for time, cpu_s in worked]
    found = diagnose(evidence([waiting(pulses=pulses), waiting(pulses=pulses)]))
    assert found.kind == "unknown"


def test_two_looks_at_once_tell_no_share_of_the_processor() -> None:
    pulses = [{"time": NOW - ago, "cpu_s": 5.02 - ago, "seqs": {}} for ago in (0.02, 0)]
    found = diagnose(evidence([waiting(pulses=pulses), waiting(pulses=pulses)]))
    assert found.kind == "unknown"


def test_all_in_the_same_call_and_nothing_moves_is_unknown() -> None:
    found = diagnose(evidence([waiting(), waiting()]))
    assert (found.kind, found.ranks) == ("unknown", ())
    moved = diagnose(evidence([waiting(share=0.2), waiting()]))
    assert moved.kind == "slow"


def test_ranks_of_which_one_waits_for_another_move_no_data() -> None:
    behind = rank(STEP[:3], waits=True, share=0.2)
    found = diagnose(evidence([waiting(share=0.2), behind, waiting()]))
    assert found.kind != "slow"


def test_nothing_at_all_is_unknown() -> None:
    found = diagnose(evidence([rank(source=None, share=None), rank(source=None, share=None)]))
    assert (found.kind, found.ranks) == ("unknown", ())


# The start


def joins(number: int, size: int, line: int = 5, address: str = "node0:29500") -> Json:
    name, _, port = address.rpartition(":")
    stack = frames(line, (C10D, "init_process_group"))
    stack[0]["arguments"] = {"rank": number, "world_size": size, "hostname": name, "port": port}
    return rank(stack=stack)


def master(reach: str, resolves: str = "10.0.0.1", address: str = "node0:29500") -> Json:
    return {"master": {"address": address, "resolves": resolves, "reach": reach}}


def test_a_node_that_takes_itself_for_the_master_is_named() -> None:
    wrong = master("refused", "127.0.0.1", "localhost:29511")
    ranks = [joins(n, 2, address="localhost:29511") for n in range(2)]
    for own in (master("ok", "127.0.0.1", "localhost:29511"), wrong):  # of torchrun, the latter
        found = diagnose(evidence(ranks, nodes={"node0": own, "node1": wrong}))
        assert named(found) == ("rendezvous", (1,), 5)
        assert "localhost:29511 (itself): refused, at 127.0.0.1, which is this" in found.summary


def test_who_looks_at_another_port_than_rank_0_is_named() -> None:
    ranks = [joins(0, 2), joins(1, 2, address="node0:1")]
    nodes = {"node0": master("ok"), "node1": master("refused", address="node0:1")}
    found = diagnose(evidence(ranks, nodes=nodes))
    assert named(found) == ("rendezvous", (1,), 5)
    assert "cannot reach the master node0:1: refused, at 10.0.0.1" in found.summary


@pytest.mark.parametrize("nodes", [1, 2])
def test_under_torchrun_nobody_listens_where_a_script_says(nodes: int) -> None:
    ranks = [joins(n, 2, address="node0:29511") for n in range(2)]
    for number, one in enumerate(ranks):
        one["env"] = {"TORCHELASTIC_USE_AGENT_STORE": "True"}
        one["node"] = f"node{number % nodes}"
    tried = master("refused", address="node0:29511")
    found = diagnose(evidence(ranks, nodes={f"node{n}": tried for n in range(nodes)}))
    assert named(found) == ("rendezvous", (0, 1), 5)
    assert "at node0:29511, where nobody listens" in found.summary


def test_who_does_not_look_for_the_master_does_not_miss_it() -> None:
    """The launcher's may be anything where the ranks meet over a file, or have met."""
    ranks = [joins(n, 2) for n in range(2)]
    for one in ranks:
        del one["threads"][0]["frames"][0]["arguments"]["hostname"]
    found = diagnose(evidence(ranks, nodes={"node1": master("refused")}))
    assert found.kind == "unknown"


def test_a_master_that_does_not_listen_yet_is_nobodys_wrong_address() -> None:
    refused = master("refused")
    outside = rank(source="py-spy", stack=frames(5, (C10D, "init_process_group")))
    nodes = {"node0": refused, "node1": refused}
    assert diagnose(evidence([outside, joins(1, 2)], nodes=nodes)).kind == "unknown"
    assert diagnose(evidence([joins(0, 2), joins(1, 2)], nodes=nodes)).kind == "unknown"
    nodes["node0"] = master("ok")
    found = diagnose(evidence([outside, joins(1, 2)], nodes=nodes))
    assert named(found) == ("rendezvous", (1,), 5)


def test_who_has_come_a_moment_ago_ends_no_hang_that_is_judged_after() -> None:
    come = joins(1, 2)
    come["pulses"] = [
        {"time": NOW - ago, "cpu_s": 1.0, "seqs": {}, "pending": 0, "where": f"train.py:{line}"}
        for ago, line in ((3.0, 1), (1.0, 10))
    ]
    found = diagnose(evidence([joins(0, 2), come]))
    assert (found.kind, found.ranks) == ("slow", ())
    assert "rank 1 since a moment ago" in found.summary


def test_who_was_read_from_outside_in_a_call_has_joined_before() -> None:
    outside = rank(source="py-spy", stack=frames(26, (C10D, "_verify_param_shape")))
    assert diagnose(evidence([outside, joins(1, 2)])).kind == "unknown"
    seen_before = late() | {"groups": [], "collectives": []}
    seen_before["pulses"] = [{"time": NOW - 9, "cpu_s": 1.0, "seqs": {"0": 1}, "where": None}]
    assert diagnose(evidence([seen_before, joins(1, 2)])).kind != "rendezvous"
    assert diagnose(evidence([rank(stack=frames(3)), joins(1, 2)])).kind == "rendezvous"


def test_a_world_that_has_no_place_for_a_rank_is_named() -> None:
    alone = rank(ended={"code": 0, "signal": None})
    finding = diagnose(evidence([alone, joins(1, 1), joins(2, 1)]))
    assert named(finding) == ("rendezvous", (1, 2), 5)
    assert "a world of 1, which has no rank 1; 3 ranks were started" in finding.summary


def in_files(*files: str) -> list[Json]:
    """Ranks that look for the others in a file each."""
    ranks = [joins(number, len(files)) for number in range(len(files))]
    for one, file in zip(ranks, files, strict=True):
        frame = one["threads"][0]["frames"][0]
        frame["arguments"] = {"world_size": len(files), "init_method": f"file://{file}"}
    return ranks


def test_ranks_that_look_for_each_other_in_different_files_are_named() -> None:
    finding = diagnose(evidence(in_files("/mnt/meet", "/mnt/meet-1", "/mnt/meet")))
    assert named(finding) == ("rendezvous", (1,), 5)
    assert "ranks 0, 2 at file:///mnt/meet, rank 1 at file:///mnt/meet-1" in finding.summary

    finding = diagnose(evidence(in_files("/mnt/meet-0", "/mnt/meet-1")))
    assert named(finding) == ("rendezvous", (0, 1), 5)


def test_one_file_may_be_another_on_each_node_or_an_old_one() -> None:
    finding = diagnose(evidence(in_files("/tmp/meet", "/tmp/meet")))
    assert finding.kind == "unknown"
    assert "a disk that all nodes share" in (finding.cure or "")


def test_all_that_join_and_nobody_missing_is_unknown() -> None:
    assert diagnose(evidence([joins(0, 2), joins(1, 2)])).kind == "unknown"


def test_each_number_that_is_taken_twice_is_told_and_who_has_it_by_right_is_innocent() -> None:
    found = diagnose(evidence([joins(n % 2, 4) for n in range(4)]))
    assert named(found) == ("rendezvous", (2, 3), 5)
    assert found.summary == (
        "rank 2 (node2, local 0) joins as rank 0, as rank 0 itself does; "
        "rank 3 (node3, local 0) joins as rank 1, as rank 1 itself does: "
        "the world of 4 is never complete"
    )
    assert [one.ranks for one in found.innocent] == [(0, 1)]
    two = [rank(stack=frames(3)), joins(3, 4), joins(3, 4), rank(stack=frames(3))]
    assert diagnose(evidence(two)).summary == (
        "ranks 1, 2 (node1, node2) join as rank 3: the world of 4 is never complete"
    )
    local = [joins(n % 8, 16) for n in range(16)]
    assert "; and so on, 8 numbers in all: the world" in diagnose(evidence(local)).summary


# Failures


def failure(number: int, message: str, **changes: Any) -> Json:
    chain = [{"kind": "RuntimeError", "message": message}]
    raised = {"exception": "RuntimeError", "message": message, "chain": chain}
    return (
        {"rank": number, "node": f"node{number}", "kind": "exception", "exit_code": 1}
        | raised
        | changes
    )


LOST = "[gloo/transport/tcp/pair.cc:553] Connection closed by peer"


def test_victims_point_to_the_rank_that_ended_well_before() -> None:
    told = {"kind": "RuntimeError", "file": "train.py", "line": 10}
    chain = failure(0, LOST)["chain"]
    victim = rank(
        STEP,
        stack=frames(10, (C10D, "all_reduce")),
        ended={"code": 1, "signal": None},
        exception={**told, "message": LOST, "chain": chain},
    )
    well = rank(ended={"code": 0, "signal": None})
    found = diagnose(
        evidence([victim, well], because="failure", failure=failure(0, LOST, file="train.py"))
    )
    assert named(found) == ("ended-early", (1,), 10)
    assert found.innocent[0].ranks == (0,)


def test_all_who_left_parameters_out_are_named() -> None:
    said = "Expected to have finished reduction in the prior iteration before starting a new one."
    chain = [{"kind": "RuntimeError", "message": said}]
    raised = {
        "kind": "RuntimeError",
        "message": said,
        "file": "train.py",
        "line": 8,
        "chain": chain,
    }
    ranks = [rank(exception=raised) for _ in range(3)]
    told = failure(2, said, file="train.py", line=8)
    found = diagnose(evidence(ranks, because="failure", failure=told))
    assert named(found) == ("unused-parameter", (0, 1, 2), 8)
    assert not any("besides" in one for one in found.evidence)


def test_a_consequence_at_the_same_line_is_not_the_same_failure() -> None:
    def raised(message: str) -> Json:
        chain = [{"kind": "RuntimeError", "message": message}]
        return {"kind": "RuntimeError", "file": "train.py", "line": 6, "chain": chain}

    sizes = "params[0] in this process appears not to match sizes of the same param in process 0"
    ranks = [
        rank(exception=raised("gloo: Connection closed by peer")),
        rank(exception=raised(sizes)),
    ]
    told = failure(1, sizes, **raised(sizes), exception="RuntimeError")
    found = diagnose(evidence(ranks, because="failure", failure=told))
    assert named(found) == ("failed", (1,), 6)


def test_an_own_failure_is_not_blamed_on_who_is_slow() -> None:
    own = failure(1, "no such file: data.bin", file="train.py", line=3)
    found = diagnose(evidence([waiting(), rank(), late()], because="failure", failure=own))
    assert named(found) == ("failed", (1,), 3)


def test_what_a_loaders_worker_has_raised_is_said_to_be_its() -> None:
    own = failure(1, "sample 7 is no number", file="data.py", line=3)
    told = {"kind": "ValueError", "file": "data.py", "line": 3, "message": "sample 7 is no number"}
    caught = told | {"chain": [], "caught": "DataLoader worker process 0"}
    found = diagnose(evidence([rank(), rank(exception=caught)], because="failure", failure=own))
    assert named(found) == ("failed", (1,), 3)
    assert found.evidence == ("it was raised in DataLoader worker process 0 of rank 1",)


def test_a_timeout_is_blamed_on_the_rank_that_was_awaited() -> None:
    message = "[gloo] Timed out waiting 1800000ms for recv operation to complete"
    victim = rank(
        STEP,
        stack=frames(10, (C10D, "all_reduce")),
        exception={
            "kind": "RuntimeError",
            "file": "train.py",
            "line": 10,
            "message": message,
            "chain": failure(0, message)["chain"],
        },
    )
    given = failure(0, message, file="train.py", line=10)
    found = diagnose(evidence([victim, late(33)], because="failure", failure=given))
    assert named(found) == ("busy-alone", (1,), 33)
    paused = evidence([victim, late(33, state="T")], because="failure", failure=given)
    assert named(diagnose(paused)) == ("paused", (1,), 33)


def test_a_victim_of_nobody_known_is_told_as_one() -> None:
    found = diagnose(evidence([rank(), rank()], because="failure", failure=failure(1, LOST)))
    assert (found.kind, found.ranks) == ("failed", (1,))
    assert "whose peer has gone" in found.evidence[0]


def test_a_lost_node_is_dead() -> None:
    lost = failure(1, "the connection was lost", kind="node-lost", exception=None, chain=[])
    found = diagnose(evidence([waiting(), rank()], because="failure", failure=lost))
    assert (found.kind, found.ranks, found.nodes) == ("dead", (1,), ("node1",))


def test_a_victim_that_is_busy_with_its_traceback_had_waited_in_backward() -> None:
    chain = failure(0, LOST)["chain"]
    victim = rank(
        [*STEP[:3], call(4, via="backward")],
        stack=frames(10, ("torch/autograd/graph.py", "_engine_run_backward")),
        exception={"kind": "RuntimeError", "file": "train.py", "line": 10, "chain": chain},
        state="R",
        share=1.0,
    )
    well = rank(ended={"code": 0, "signal": None})
    found = diagnose(
        evidence([victim, well], because="failure", failure=failure(0, LOST, file="train.py"))
    )
    assert named(found) == ("ended-early", (1,), 10)


# Ranks that gloo has aborted: the stack is all that they leave.

LOOP = [call(n, ("all_reduce", "broadcast")[n % 2], 10 + n % 2) for n in range(1, 9)]
"""In turn a broadcast at line 11 and an all-reduce at line 10, eight in all."""


def aborted(line: int, *functions: str, file: str = C10D) -> Json:
    """Its last stack: functions of a library, the innermost first."""
    stack = frames(line, *[(file, function) for function in functions])
    return rank(stack=stack, ended={"code": 134, "signal": 6})


def after_abort(*ranks: Json, came: int = 16, room: int = 4) -> Finding:
    said = f"what(): op.preamble.length <= op.nbytes. {came} vs {room}. Received data size"
    signal = {"kind": "signal", "exit_code": 134, "exception": None, "chain": []}
    given = failure(1, "", last_lines=[said]) | signal
    return diagnose(evidence(ranks, because="failure", failure=given))


def test_an_aborted_rank_at_the_same_line_has_a_smaller_tensor() -> None:
    others = [rank([*LOOP, call(9, "broadcast", 11)], waits=True) for _ in range(2)]
    found = after_abort(others[0], aborted(11, "broadcast"), others[1])
    assert named(found) == ("mismatched-collective", (1,), 11)
    assert "with a smaller tensor" in found.summary
    assert "16 bytes came, and it had room for 4" in found.evidence[-1]


def test_an_aborted_rank_that_was_one_call_further_has_skipped_one() -> None:
    others = [rank([*LOOP, call(9, "broadcast", 11)], waits=True) for _ in range(2)]
    found = after_abort(others[0], aborted(10, "all_reduce"), others[1])
    assert named(found) == ("skipped-collective", (1,), 10)


def test_an_aborted_rank_where_nobody_has_been_made_a_call_too_many() -> None:
    others = [rank([*LOOP, call(9, "broadcast", 11)], waits=True) for _ in range(2)]
    found = after_abort(others[0], aborted(50, "all_reduce"), others[1])
    assert named(found) == ("extra-collective", (1,), 50)


def test_of_two_ranks_the_aborted_one_is_innocent_if_the_other_does_something_new() -> None:
    guilty = rank([*LOOP, call(9, "all_gather", 50)], waits=True)
    found = after_abort(guilty, aborted(11, "broadcast"), came=8)  # a half
    assert (found.kind, found.ranks, found.line) == ("extra-collective", (0,), 50)


def test_an_aborted_rank_in_the_others_new_call_is_one_of_them() -> None:
    """Rank 0 alone has one more batch: the other two are at the end of the epoch."""
    more = rank([*LOOP, call(9, "broadcast", 11)], waits=True)
    end = rank([*LOOP, call(9, "all_reduce", 50, shape=())], waits=True)
    found = after_abort(more, aborted(50, "all_reduce"), end)
    assert (found.ranks, found.line) == ((0,), 11)
    assert "rank 1 left no list: the line of the last stack puts it" in found.evidence[-2]
    # From the loop's own lines nothing tells on which side it was.
    found = after_abort(more, aborted(11, "broadcast"), end)
    assert (found.ranks, found.line) == ((2,), 50)


def test_an_aborted_rank_that_sends_objects_may_be_behind_the_call_of_the_others() -> None:
    sizes = call(1, "broadcast", 7, shape=(2,), dtype="int64", via="broadcast_object_list")
    objects = call(2, "broadcast", 7, shape=(37,), dtype="uint8", via="broadcast_object_list")
    waits = rank([sizes, objects], waits=True)
    ahead = rank([sizes, objects, call(3, "barrier", 8)], waits=True)
    behind = aborted(7, "broadcast", "broadcast_object_list")
    found = after_abort(waits, behind, ahead, came=16, room=8)
    assert named(found) == ("mismatched-collective", (1,), 7)
    assert "broadcast #1 of the default group" in found.summary


def test_an_aborted_rank_without_a_stack_is_compared_with_nothing() -> None:
    silent = rank(ended={"code": 134, "signal": 6})
    found = after_abort(rank([call(1, "broadcast")], waits=True), silent)
    assert named(found) == ("mismatched-collective", (0, 1), None)
    assert "shows no stack" in found.summary
    assert "#" not in found.summary


def test_an_aborted_rank_alone_is_told_as_it_is() -> None:
    found = after_abort(rank(), aborted(11, "broadcast"))
    assert named(found) == ("mismatched-collective", (1,), 11)
    found = after_abort(rank(), aborted(11, "broadcast"), rank())
    assert (named(found), found.innocent) == (("mismatched-collective", (), 11), ())
    assert "which one nothing tells" in found.summary


def test_what_came_tells_which_call_of_the_other_it_was() -> None:
    """All-gathers of 16 bytes, in halves: the other rank has gone on to a barrier since."""
    gathers = [call(n, "all_gather", 8) for n in (1, 2, 3)]
    ahead = rank([*gathers, call(4, "barrier", 10) | {"shapes": [], "dtypes": []}], waits=True)
    found = after_abort(ahead, aborted(8, "all_gather"), came=8, room=6)
    assert named(found) == ("mismatched-collective", (0, 1), 8)
    assert "collective #3" in found.summary
    assert "rank 1 (node1, local 0) all_gather with a smaller tensor" in found.summary
    assert "barrier" not in str(found)
    assert "nothing tells" in found.evidence[0]


def test_the_newest_of_a_rank_that_has_failed_is_not_taken_for_done() -> None:
    """Its exception ends the call. In the earlier all-reduces too much would have come as well."""
    calls = [call(n, shape=(10,)) for n in range(1, 5)]
    found = after_abort(rank(calls, waits=False), aborted(10, "all_reduce"), came=12)
    assert "collective #4" in found.summary


def test_of_two_ranks_the_one_that_changed_its_habit_is_guilty() -> None:
    shapes = [(1,), (10,), (1,), (10,), (10,)]
    swapped = rank([call(n, line=9, shape=one) for n, one in enumerate(shapes, 1)], waits=True)
    found = after_abort(swapped, aborted(9, "all_reduce"), came=12, room=4)
    assert named(found) == ("mismatched-collective", (0,), 9)
    assert "it called all_reduce [1] float32 there" in found.evidence[0]


def test_another_shape_at_the_same_line_is_no_skipped_call() -> None:
    usual = [call(n, line=9, shape=((10,), (1,))[n % 2]) for n in range(1, 6)]
    swapped = [*usual[:4], call(5, line=9, shape=(10,))]
    others = [rank(usual, waits=True) for _ in range(2)]
    found = after_abort(
        others[0], aborted(9, "all_reduce"), others[1], rank(swapped, waits=True), came=8, room=4
    )
    assert named(found) == ("mismatched-collective", (3,), 9)
    assert "ranks 0-2 called all_reduce [1]" in found.summary


def test_what_is_received_is_no_collective() -> None:
    ahead = rank([call(1, "barrier", 10) | {"shapes": [], "dtypes": []}], waits=True)
    ahead["messages"] = [{"group": "0", "peer": 1, "tag": 0, "sent": 4, "received": 0}]
    found = after_abort(ahead, aborted(8, "recv"), came=192, room=128)
    assert named(found) == ("mismatched-collective", (0, 1), 8)
    assert found.summary == (
        "rank 0 (node0, local 0) sent 192 bytes to rank 1 (node1, local 0), whose recv at "
        "train.py:8 (main) had room for 128"
    )
    assert "barrier" not in str(found)
    found = after_abort(ahead, aborted(8, "isend"), came=192, room=128)
    assert "where a receive had room for 128: that rank is in isend()" in found.summary
    # It waits for a receive that it has begun, and no collective of the others has sent so much.
    found = after_abort(ahead, aborted(9), came=192, room=128)
    assert "where a receive had room for 128: that rank is at train.py:9" in found.summary
    # Who sent it, of two, nothing tells.
    found = after_abort(ahead, aborted(8, "recv"), ahead, came=192, room=128)
    assert found.ranks == (1,)
    assert found.summary.startswith("a rank sent 192 bytes")


def test_who_has_the_larger_tensor_is_the_odd_one_if_several_were_aborted() -> None:
    root = rank([call(1, "broadcast", shape=(120, 8)), call(2, line=11)], waits=True)
    small = rank([call(1, "broadcast", shape=(100, 8))], waits=True)
    here = aborted(10, "broadcast")
    found = after_abort(root, here, here, small, came=3840, room=3200)
    assert named(found) == ("mismatched-collective", (0,), 10)
    assert "ranks 1-3 called broadcast [100,8]" in found.summary
    found = after_abort(root, here, here, came=3840, room=3200)
    assert named(found) == ("mismatched-collective", (0,), 10)
    found = after_abort(root, here, came=3840, room=3200)
    assert named(found) == ("mismatched-collective", (0, 1), 10)
    assert "collective #1 " in found.summary


def test_where_an_object_was_sent_the_lists_came_apart_at_its_length() -> None:
    length = call(1, "broadcast", 10, shape=(1,), dtype="int64", via="broadcast_object_list")
    loaded = call(2, "broadcast", 10, shape=(24,), dtype="uint8", via="broadcast_object_list")
    alone = rank([length, loaded, call(3, "broadcast", 11, shape=(4, 4))], waits=True)
    found = after_abort(alone, aborted(11, "broadcast"), came=24, room=16)
    assert named(found) == ("mismatched-collective", (0, 1), None)
    assert "as collective #2" in found.summary
    assert "#3" not in str(found)
    assert any("#1 belongs to the same broadcast_object_list()" in one for one in found.evidence)


def test_a_librarys_function_is_not_told_as_a_collective() -> None:
    there = rank([call(1, shape=(1,), dtype="int64", via="__exit__")], waits=True)
    found = after_abort(there, aborted(10, "all_reduce", "__exit__"), came=8)
    assert "in __exit__() at train.py:10" in found.summary
    assert "exit__" not in found.summary.replace("__exit__()", "")
    join = aborted(8, "__exit__", file="torch/distributed/algorithms/join.py")
    found = after_abort(there, join, came=8)
    assert "called a collective in __exit__() at train.py:8" in found.summary


def test_where_several_calls_of_the_other_may_have_sent_it_none_is_named() -> None:
    calls = [call(1, "broadcast"), call(2, "broadcast", 11), call(3, "broadcast", 12)]
    found = after_abort(rank(calls, waits=True), aborted(50, "broadcast"))
    assert named(found) == ("mismatched-collective", (0, 1), 50)
    assert "rank 0 has sent more to it than it has room for" in found.summary
    assert "#" not in found.summary


def test_threads_in_collectives_of_one_group_are_both_told() -> None:
    def with_thread() -> Json:
        both = aborted(12, "all_reduce")
        frames_there = frames(7, (C10D, "all_reduce"))
        both["threads"].append({"name": "metrics", "main": False, "frames": frames_there})
        return both

    calls = [call(n, line=12, shape=(64,)) for n in range(1, 5)]
    found = after_abort(rank(calls, waits=True), with_thread(), came=64, room=8)
    assert found.ranks == (1,)
    assert "train.py:12" in found.summary
    assert "train.py:7" in found.summary
    assert "new_group" in str(found.cure)
    # Each has a group of its own.
    other = call(1, line=7) | {"group": "1"}
    apart = rank([*calls, other], waits=True)
    apart["groups"].append({"name": "1", "backend": "gloo", "ranks": [0, 1]})
    found = after_abort(apart, with_thread(), came=64, room=8)
    assert "threads" not in found.summary


@pytest.mark.parametrize(
    ("op", "shape", "dtype", "ranks", "lengths"),
    [
        ("all_reduce", (10,), "float32", 2, {12, 4}),
        ("all_reduce", (10,), "float32", 4, {8}),
        ("all_reduce", (5,), "float32", 2, {8, 4}),
        ("all_reduce", (), "bfloat16", 4, {2}),
        ("all_reduce", (1 << 22,), "float32", 2, {1 << 20}),
        ("all_reduce", (0,), "float32", 2, {0}),
        ("all_gather", (3,), "float32", 2, {6}),
        ("_allgather_base", (3,), "bool", 4, {1, 2}),
        ("broadcast", (120, 8), "float32", 4, {3840}),
        ("barrier", (), "float32", 4, {0}),
        ("reduce", (4,), "float32", 4, None),
    ],
)
def test_how_long_gloos_messages_are(
    op: str, shape: tuple[int, ...], dtype: str, ranks: int, lengths: set[int] | None
) -> None:
    group = ("0", tuple(range(ranks)))
    one = Collective(group, 1, op, (shape,), (dtype,), True, None, None, None)
    assert sent(one) == lengths


def test_a_rank_that_leaves_the_group_is_early_and_waits_for_nobody() -> None:
    leaves = rank(STEP[:3], stack=frames(40, (C10D, "destroy_process_group")))
    assert named(diagnose(evidence([waiting(), leaves]))) == ("ended-early", (1,), 40)


def test_a_rank_that_computes_inside_fsdp_is_late_not_waiting() -> None:
    stack = frames(21, ("torch/distributed/fsdp/_fully_shard/_fsdp_param.py", "to_sharded"))
    computes = rank(STEP[:3], stack=stack, share=1.0, state="R")
    assert named(diagnose(evidence([waiting(), computes]))) == ("busy-alone", (1,), 21)


def test_a_main_thread_that_waits_for_one_that_communicates_waits_as_well() -> None:
    def with_threads() -> Json:
        found = rank(STEP, stack=[])
        found["collectives"][-1]["done"] = False
        join = {"file": "/python3.11/threading.py", "line": 1, "function": "Thread.join"}
        found["threads"] = [
            {"name": "saver", "main": False, "frames": frames(10, (C10D, "all_reduce"))},
            {"name": "MainThread", "main": True, "frames": [join | {"user": False}, *frames(50)]},
        ]
        return found

    assert named(diagnose(evidence([with_threads(), late(), with_threads()])))[:2] == (
        "busy-alone",
        (1,),
    )


@pytest.mark.parametrize("function", ["_find_and_load", "<module>"])
def test_who_still_imports_a_library_is_on_the_way(function: str) -> None:
    importing = rank(stack=frames(1, ("torch/nn/__init__.py", "<module>"), ("torch.py", function)))
    joining = rank(stack=frames(5, (C10D, "init_process_group")))
    for ranks in ([joining, importing], [importing, importing]):
        found = diagnose(evidence(ranks))
        assert (found.kind, found.line) == ("slow", 1)
        assert "imports what it needs at train.py:1" in found.summary


def test_who_imports_what_a_call_needs_is_in_no_collective_though_torch_has_the_module() -> None:
    library = [("torch/distributed/_composable.py", "<module>"), ("torch/ddp.py", "__init__")]
    importing = late(stack=frames(20, *library))
    found = diagnose(evidence([waiting(), importing]))
    assert (found.kind, found.ranks, found.line) == ("slow", (1,), 20)


def test_a_program_that_is_a_library_is_not_taken_for_an_import() -> None:
    stack = [{"file": "/site-packages/own.py", "line": 3, "function": "<module>", "user": False}]
    found = diagnose(evidence([waiting(), late(stack=stack), waiting()]))
    assert found.kind != "slow"


def test_who_imports_a_module_of_the_user_that_does_not_come_to_its_end_does_not() -> None:
    own = rank(stack=[*frames(7), *frames(1, ("<frozen importlib>", "_find_and_load"))])
    joining = rank(stack=frames(5, (C10D, "init_process_group")))
    assert named(diagnose(evidence([joining, own]))) == ("rendezvous", (1,), 7)


# Roots


def broadcasts(**arguments: int) -> Json:
    """A rank that waits in a broadcast that it has called so."""
    stack = frames(10, (C10D, "broadcast"))
    stack[0]["arguments"] = {"group": "0", **arguments}
    return rank([call(1, "broadcast")], waits=True, stack=stack)


def test_the_rank_that_waits_for_another_root_is_named() -> None:
    found = diagnose(evidence([broadcasts(src=0), broadcasts(src=0), broadcasts(group_src=1)]))
    assert named(found) == ("mismatched-collective", (2,), 10)
    assert "with root 1 at train.py:10" in found.summary
    assert found.innocent[0].ranks == (0, 1)
    found = diagnose(evidence([broadcasts(src=0), rank([call(1, "broadcast")]), broadcasts(src=1)]))
    assert found.ranks == (0, 2)
    assert found.evidence[-1] == "rank 1: not in it any more, with whatever root"
    found = diagnose(evidence([broadcasts(src=0), broadcasts(group_src=0)]))
    assert found.kind == "unknown"


def sends_objects(*called: tuple[str, str], src: int) -> Json:
    """A rank in broadcast_object_list, with the operations and dtypes of its calls so far."""
    via = "broadcast_object_list"
    calls = [call(n, op, dtype=dtype, via=via) for n, (op, dtype) in enumerate(called, 1)]
    told = rank(calls, waits=True, stack=frames(10, (C10D, "broadcast"), (C10D, via)))
    told["threads"][0]["frames"][1]["arguments"] = {"src": src, "group": "0"}
    return told


def test_who_sends_objects_has_named_one_root_for_both_of_its_calls() -> None:
    sizes, objects = ("broadcast", "int64"), ("broadcast", "uint8")
    ranks = [sends_objects(sizes, src=0), *(sends_objects(sizes, objects, src=0) for _ in range(2))]
    found = diagnose(evidence([*ranks, sends_objects(sizes, src=1)]))
    assert named(found) == ("mismatched-collective", (3,), 10)
    assert "called broadcast #1 [4] int64 of the default group with root 1" in found.summary
    assert found.evidence == ("ranks 0-2: root 0", "rank 3: root 1")
    # In the sizes of the next time nobody knows the root of the time before.
    ranks = [sends_objects(sizes, objects, src=0), sends_objects(sizes, objects, sizes, src=0)]
    found = diagnose(evidence([*ranks, sends_objects(sizes, objects, src=1)]))
    assert found.ranks == (0, 2)
    assert found.evidence[-1] == "rank 1: not in it any more, with whatever root"


def test_handles_of_different_operations_are_not_said_to_be_one() -> None:
    handles = [rank([call(1)], stack=frames(n, code="work.wait()")) for n in (20, 30)]
    found = diagnose(evidence(handles))
    assert found.kind == "unknown"
    assert "have all called it" not in found.summary


# Ranks at the end of their script


def lingers(**changes: Any) -> Json:
    """A rank that has called three, and whose main thread waits for another one."""
    shutdown = {"file": "/python3.11/threading.py", "line": 1, "function": "_shutdown"}
    found = rank(STEP[:3], stack=[shutdown | {"user": False}], **changes)
    found["threads"].append({"name": "uploader", "main": False, "frames": []})
    return found


def test_a_rank_that_waits_for_its_own_threads_has_ended_early() -> None:
    found = diagnose(evidence([waiting(), lingers(), waiting()]))
    assert named(found) == ("ended-early", (1,), 10)
    assert "waits for its other threads (uploader)" in found.summary


def test_a_rank_that_does_not_end_is_named_though_nobody_waits_for_it() -> None:
    ended = rank(ended={"code": 0, "signal": None})
    found = diagnose(evidence([lingers(), ended]))
    assert named(found) == ("busy-alone", (0,), None)
    assert "(uploader)" in found.summary
    found = diagnose(evidence([late(30), ended]))
    assert named(found) == ("busy-alone", (0,), 30)
    failed = rank(ended={"code": 1, "signal": None})
    assert diagnose(evidence([late(30), failed])).kind == "unknown"
    assert diagnose(evidence([late(30), late(30), ended])).ranks == (0, 1)


def test_what_is_no_line_of_the_script_is_not_said_to_be_one() -> None:
    formats = rank(STEP[:3], stack=frames(1, ("traceback.py", "format_exception"))[:1])
    found = diagnose(evidence([waiting(), formats, waiting()]))
    assert (found.kind, found.ranks) == ("unknown", (1,))
    assert "it is in no line of the script" in found.summary


# Circles through two groups


def in_turn(*groups: str, **members: list[int]) -> Json:
    """A rank of four that has called so in these groups, and waits in the last."""
    calls: list[Json] = []
    for group in groups:
        seq = 1 + sum(one["group"] == group for one in calls)
        line = 10 if group == "0" else 9
        calls.append(call(seq, line=line, ago=100.0 - len(calls)) | {"group": group})
    found = rank(calls, waits=True)
    ranks = {"0": [0, 1, 2, 3], **members}
    found["groups"] = [
        {"name": name, "backend": "gloo", "ranks": one} for name, one in ranks.items()
    ]
    return found


ROUNDS = ("sub", "0", "sub", "0")


def test_of_a_circle_the_only_rank_that_changed_its_rounds_is_named() -> None:
    even = [in_turn(*ROUNDS, "sub", "0", sub=[0, 2]) for _ in range(2)]
    skips, waits_for_it = (in_turn(*ROUNDS, last, sub=[1, 3]) for last in ("0", "sub"))
    found = diagnose(evidence([even[0], skips, even[1], waits_for_it]))
    assert named(found) == ("deadlock", (1,), 10)
    assert "all_reduce [4] float32 of group sub (ranks 1, 3) at train.py:9" in found.summary
    assert {rank for one in found.innocent for rank in one.ranks} == {0, 2, 3}


def test_of_a_circle_all_are_named_where_half_of_the_ranks_have_changed() -> None:
    first, second = (in_turn(*ROUNDS, "0", sub=pair) for pair in ([0, 2], [1, 3]))
    waits = [in_turn(*ROUNDS, "sub", sub=pair) for pair in ([0, 2], [1, 3])]
    found = diagnose(evidence([first, second, *waits]))
    assert found.kind == "deadlock"
    assert {0, 2} <= set(found.ranks) or {1, 3} <= set(found.ranks)


def test_of_a_circle_the_rank_is_named_that_made_a_call_once_less_than_all_others() -> None:
    """All have left the loop but rank 0, which waits for the call that rank 2 has left out."""
    ends = (in_turn(*["sub"] * 5, "0", sub=[1, 3]) for _ in range(2))
    waits, skipped = in_turn(*["sub"] * 5, sub=[0, 2]), in_turn(*["sub"] * 4, "0", sub=[0, 2])
    found = diagnose(evidence([waits, next(ends), skipped, next(ends)]))
    assert named(found) == ("deadlock", (2,), 10)
    assert "once less often" in found.summary


def test_who_has_gone_past_a_monitored_barrier_is_named() -> None:
    stack = frames(9, (C10D, "monitored_barrier"))
    stack[0]["arguments"] = {"group": "0"}
    inside = [rank([call(n) for n in (1, 2)], stack=stack) for _ in range(3)]
    past = rank([call(n, line=7) for n in (1, 2, 3)], waits=True)
    found = diagnose(evidence([inside[0], past, *inside[1:]]))
    assert named(found) == ("skipped-collective", (1,), 7)
    assert "skipped monitored_barrier of the default group, in which ranks 0, 2, 3" in found.summary


def test_who_waits_for_a_message_is_not_guilty_of_being_behind() -> None:
    calls = [call(n, "barrier", 14) for n in range(1, 4)]
    there = [rank(calls, waits=True, messages=[lane(1, sent=2)]) for _ in range(3)]
    stack = frames(13, (C10D, "recv"))
    stack[0]["arguments"] = {"src": 0}
    waits = rank(calls[:2], stack=stack, messages=[lane(0, received=3)])
    found = diagnose(evidence([there[0], waits, *there[1:]]))
    assert (found.kind, found.ranks) == ("deadlock", (0, 1))
    assert {rank for one in found.innocent for rank in one.ranks} == {2, 3}
    assert found.evidence[-1] == (
        "rank 1 has begun to receive 3 messages from rank 0, which has begun to send 2"
    )


# Handles of point-to-point messages


def lane(peer: int | None, sent: int = 0, received: int = 0, tag: int = 0) -> Json:
    return {"group": "0", "peer": peer, "tag": tag, "sent": sent, "received": received}


def handles(*messages: Json, line: int = 40) -> Json:
    """A rank in `work.wait()`, which a stack has no frame of."""
    return rank(STEP, stack=frames(line, code="work.wait()"), messages=list(messages))


def elsewhere(*messages: Json, line: int = 20) -> Json:
    return rank(STEP, stack=frames(line, code="load()"), messages=list(messages))


def test_who_has_not_sent_what_others_wait_for_is_named() -> None:
    first = elsewhere(lane(1, sent=3))
    middle = handles(lane(0, received=4), lane(2, sent=3))
    last = handles(lane(1, received=4), line=42)
    found = diagnose(evidence([first, middle, last]))
    assert named(found) == ("busy-alone", (0,), 20)
    assert [(one.ranks, one.what) for one in found.innocent] == [
        ((1,), "waits in irecv from rank 0"),
        ((2,), "waits in irecv from rank 1"),
    ]


def test_who_has_sent_is_not_named_though_nobody_has_waited_for_that_message_yet() -> None:
    sender = elsewhere(lane(1, sent=1))
    waiting = handles(lane(0, received=1), lane(2, received=1))
    other = elsewhere(line=30)
    found = diagnose(evidence([sender, waiting, other]))
    assert named(found) == ("busy-alone", (2,), 30)


def test_a_message_of_another_tag_is_not_the_one_that_is_waited_for() -> None:
    sender = elsewhere(lane(1, sent=1, tag=7))
    found = diagnose(evidence([sender, handles(lane(0, received=1))]))
    assert named(found) == ("busy-alone", (0,), 20)


def test_who_does_not_take_what_is_sent_is_named_unless_he_takes_it_from_anybody() -> None:
    sending = handles(lane(1, sent=2))
    found = diagnose(evidence([sending, elsewhere(lane(0, received=1))]))
    assert named(found) == ("busy-alone", (1,), 20)
    assert "isend to rank 1" in found.summary
    anybody = elsewhere(lane(0, received=1), lane(None, received=1))
    assert diagnose(evidence([sending, anybody])).kind == "unknown"


def test_two_that_wait_for_each_others_messages_are_a_deadlock() -> None:
    ranks = [handles(lane(1 - n, sent=1, received=2)) for n in range(2)]
    found = diagnose(evidence(ranks))
    assert (found.kind, found.ranks) == ("deadlock", (0, 1))


def blocks(function: str, **arguments: int) -> Json:
    """A rank in a send or recv that returns when it is done."""
    inner, own = frames(50, (C10D, function))
    return rank(STEP, stack=[inner | {"arguments": arguments}, own])


@pytest.mark.parametrize(
    ("sends", "receives"),
    [
        (blocks("send", dst=1, tag=1), blocks("recv", src=0, tag=2)),
        (blocks("send", dst=1), blocks("recv", src=0, tag=2)),
        (handles(lane(1, sent=1, tag=1)), handles(lane(0, received=1, tag=2))),
        (handles(lane(1, sent=1, tag=1)), blocks("recv", src=0, tag=2)),
    ],
)
def test_a_send_and_a_recv_of_other_tags_do_not_meet(sends: Json, receives: Json) -> None:
    found = diagnose(evidence([sends, receives]))
    assert (found.kind, found.ranks) == ("deadlock", (0, 1))
    assert "recv from rank 0 (tag 2)" in found.summary
    assert "the same tag" in (found.cure or "")


def test_a_send_and_a_recv_of_one_tag_meet() -> None:
    ranks = [blocks("send", dst=1, tag=3), blocks("recv", src=0, tag=3)]
    assert diagnose(evidence(ranks)).kind == "unknown"


def test_nothing_is_known_of_a_peer_that_did_not_say_what_it_has_sent() -> None:
    silent = rank(source="py-spy", stack=frames(20))
    found = diagnose(evidence([silent, handles(lane(0, received=1))]))
    assert found.kind == "unknown"


# Threads


def test_of_a_rank_whose_main_thread_waits_for_another_that_ones_line_is_told() -> None:
    joining = rank(
        STEP[:3],
        stack=frames(11, ("threading.py", "Thread._wait"), ("threading.py", "Thread.join")),
    )
    for frame in joining["threads"][0]["frames"][:2]:
        frame["file"] = "/usr/lib/python3.11/threading.py"
    joining["threads"].append({"name": "Thread-1", "main": False, "frames": frames(6)})
    found = diagnose(evidence([waiting(), joining]))
    assert named(found) == ("busy-alone", (1,), 6)
    joining["threads"].append({"name": "Thread-2", "main": False, "frames": frames(7)})
    assert named(diagnose(evidence([waiting(), joining]))) == ("busy-alone", (1,), 11)


def test_the_cure_for_a_rank_that_waits_is_not_that_for_one_that_computes() -> None:
    blocked = diagnose(evidence([waiting(), late()]))
    busy = diagnose(evidence([waiting(), late(share=1.0)]))
    assert (blocked.kind, busy.kind) == ("busy-alone", "busy-alone")
    assert "see what this line waits for" in (blocked.cure or "")
    assert "share the work" in (busy.cure or "")
