"""Samples that several ranks train on, or none."""

import base64
import itertools
import random
import struct
import zlib
from collections.abc import Sequence
from typing import Any

from lab.diagnose.audit.batches import Batches
from lab.diagnose.audit.loaders import Loaders
from lab.diagnose.finding import Finding

SITE = {"file": "train.py", "line": 5, "function": "main"}


def batch(
    step: int,
    rows: Sequence[int],
    weights: int = 1,
    *,
    exchanged: bool = True,
    share: Sequence[int] | None = None,
) -> dict[str, Any]:
    packed = base64.b64encode(struct.pack(f"<{len(rows)}I", *rows)).decode()
    about = {
        "check": "batches",
        "step": step,
        "microbatch": 0,
        "weights": weights,
        "exchanged": exchanged,
        "share": share,
    }
    return {**about, "count": len(rows), "rows": packed, **SITE}


def trained(*ranks: Sequence[Sequence[int]], close: bool = True) -> list[Finding]:
    """By rank: its batches."""
    judge = Batches(len(ranks))
    findings = []
    for step, batches in enumerate(zip(*ranks, strict=True), start=1):
        for rank, rows in enumerate(batches):
            findings += judge.feed(rank, batch(step, rows))
    return findings + (judge.close() if close else [])


def test_the_same_batches_are_said_while_the_run_goes_on() -> None:
    shared = [[10 * step + n for n in range(8)] for step in range(4)]
    own = [[1000 + 10 * step + n for n in range(8)] for step in range(4)]
    (finding,) = trained(shared, own, shared, close=False)
    assert (finding.kind, finding.ranks, finding.step) == ("same-batch", (0, 2), 1)
    assert finding.line == 5


def test_the_first_batch_is_counted_though_nothing_had_been_exchanged_before_it() -> None:
    """As under FSDP, which sends nothing when it is constructed."""
    judge = Batches(2)
    found = []
    for step in range(1, 5):
        rows = [10 * step + n for n in range(8)]
        for rank in range(2):
            found += judge.feed(rank, batch(step, rows, exchanged=step > 1))
    (finding,) = found
    assert (finding.kind, finding.step) == ("same-batch", 1)


def test_the_same_batches_by_the_same_share_of_a_sampler_are_said_to_be_so() -> None:
    judge = Batches(4)
    found = []
    for step in range(1, 4):
        for rank in range(4):
            local = rank % 2
            rows = range(100 * step + 10 * local, 100 * step + 10 * local + 8)
            found += judge.feed(rank, batch(step, rows, share=[4, local]))
    assert [one.ranks for one in found] == [(0, 2), (1, 3)]
    assert "share 1 of 4" in " ".join(found[1].evidence)
    assert "LOCAL_RANK" in str(found[1].cure)


def test_one_batch_or_made_up_rows_are_no_proof() -> None:
    once = [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    other = [[1, 2, 3], [14, 15, 16], [17, 18, 19]]
    assert trained(once, other) == []
    for rows in ([7, 7, 7], [7, 8, 9]):  # always the same: to measure with
        assert trained([rows] * 5, [rows] * 5) == []


def test_ranks_with_weights_of_their_own_may_share_batches() -> None:
    judge = Batches(2)
    for step in range(1, 6):
        for rank in range(2):
            assert judge.feed(rank, batch(step, range(10 * step, 10 * step + 8), rank)) == []
    assert judge.close() == []


def test_ranks_that_exchange_nothing_may_compute_the_same() -> None:
    judge = Batches(2)
    for step in range(1, 6):
        for rank in range(2):
            rows = range(10 * step, 10 * step + 3)
            assert judge.feed(rank, batch(step, rows, exchanged=False)) == []
    assert judge.close() == []


def test_samples_that_another_rank_has_in_its_own_order_overlap() -> None:
    chance = random.Random(0)
    orders = []
    for _ in range(3):
        order = list(range(96))
        chance.shuffle(order)
        orders.append([order[first : first + 8] for first in range(0, 96, 8)])
    (finding,) = trained(*orders)
    assert (finding.kind, finding.ranks) == ("overlapping-samples", (0, 1, 2))


def test_parts_that_each_rank_has_drawn_by_itself_overlap() -> None:
    """A split that is shuffled without a common seed: a third of it is on any other rank."""
    for world in (2, 3, 4, 8):
        parts = []
        for rank in range(world):
            order = list(range(600 * world))
            random.Random(rank).shuffle(order)
            part = order[rank::world]
            parts.append([part[n : n + 20] for n in range(0, len(part), 20)])
        (finding,) = trained(*parts)
        assert (finding.kind, finding.ranks) == ("overlapping-samples", tuple(range(world)))
        assert " on rank 0" in finding.evidence[0]


def test_two_pairs_that_share_their_batches_do_not_overlap_besides() -> None:
    first = [[10 * step + n for n in range(8)] for step in range(6)]
    second = [[1000 + 10 * step + n for n in range(8)] for step in range(6)]
    found = trained(first, second, first, second, close=False)
    assert [(one.kind, one.ranks) for one in found] == [
        ("same-batch", (0, 2)),
        ("same-batch", (1, 3)),
    ]


def test_epochs_dealt_out_anew_and_samples_drawn_with_replacement_are_right() -> None:
    chance = random.Random(0)
    ranks: list[list[list[int]]] = [[], []]
    for _ in range(4):
        order = list(range(96))
        chance.shuffle(order)
        for first in range(0, 96, 16):
            for rank in range(2):
                ranks[rank].append(order[first + 8 * rank : first + 8 * rank + 8])
    assert trained(*ranks) == []
    drawn = [[[chance.randrange(200) for _ in range(8)] for _ in range(80)] for _ in range(4)]
    assert trained(*drawn) == []


def test_data_that_repeats_itself_is_no_overlap() -> None:
    few = [[[step % 5, 1, 2, 3] for step in range(40)] for _ in range(2)]
    few[1] = [rows[::-1] for rows in few[1]]
    assert trained(*few) == []


def bits(indices: Sequence[int], size: int) -> str:
    number = sum(1 << index for index in set(indices))
    return base64.b64encode(zlib.compress(number.to_bytes(-(-size // 8), "little"))).decode()


def epoch(
    order: Sequence[int], size: int = 64, number: int = 1, size_of_batch: int = 8, **about: Any
) -> dict[str, Any]:
    options = {"num_replicas": 2, "shuffle": True, **about.pop("options", {})}
    return {
        "check": "loaders",
        "step": 8 * number,
        "epoch": number,
        "whole": True,
        "dataset": "TensorDataset",
        "size": size,
        "within": None,
        "drawn": len(order),
        "samples": bits(order, size),
        "body": bits(order[:-size_of_batch], size),
        "batch": size_of_batch,
        "order": zlib.crc32(repr(list(order)).encode()),
        "descents": sum(b < a for a, b in itertools.pairwise(order)),
        "probes": [[index, index * 7] for index in order],
        "sampler": "DistributedSampler",
        "options": options,
        **SITE,
        **about,
    }


def loaded(*ranks: Sequence[dict[str, Any]]) -> list[Finding]:
    judge = Loaders(len(ranks))
    findings = []
    for records in zip(*ranks, strict=True):
        for rank, one in enumerate(records):
            findings += judge.feed(rank, one)
    return findings + judge.close()


def shuffled(seed: int, size: int = 64) -> list[int]:
    order = list(range(size))
    random.Random(seed).shuffle(order)
    return order


def test_a_dataset_dealt_out_anew_each_epoch_is_right() -> None:
    ranks = [[epoch(shuffled(n)[rank::2], number=n) for n in range(1, 4)] for rank in range(2)]
    assert loaded(*ranks) == []


def test_what_distributed_sampler_fills_up_with_is_no_overlap() -> None:
    order = shuffled(0, 63)
    order.append(order[0])
    assert loaded(*[[epoch(order[rank::2], 63)] for rank in range(2)]) == []
    # Nor where someone fills whole batches up.
    order = shuffled(0, 60)
    order += order[:4]
    assert loaded(*[[epoch(order[rank * 32 :][:32], 60)] for rank in range(2)]) == []


def test_each_rank_going_through_all_of_it_is_overlap() -> None:
    (finding,) = loaded(*[[epoch(shuffled(rank))] for rank in range(3)])
    assert (finding.kind, finding.ranks) == ("overlapping-samples", (0, 1, 2))
    assert "whole dataset" in finding.summary


def test_ranks_that_train_models_of_their_own_may_go_through_all_of_it() -> None:
    judge = Loaders(2)
    for step in range(1, 4):
        for rank in range(2):
            assert judge.feed(rank, batch(step, [step], weights=rank if step > 1 else 1)) == []
    assert [judge.feed(rank, epoch(shuffled(rank))) for rank in range(2)] == [[], []]
    trained = Batches(2)  # alike, but each by itself
    for step in range(1, 9):
        for rank in range(2):
            rows = range(8 * step, 8 * step + 8)
            assert trained.feed(rank, batch(step, rows, exchanged=False)) == []
    assert trained.close() == []


def test_the_same_indices_of_other_data_are_no_overlap() -> None:
    ranks = [epoch(shuffled(rank)) for rank in range(2)]
    ranks[1]["probes"] = [[index, index * 7 + 1] for index in range(64)]
    assert loaded(*[[one] for one in ranks]) == []


def test_an_order_that_is_shuffled_and_never_changes() -> None:
    ranks = [[epoch(shuffled(0)[rank::2], number=n) for n in (1, 2)] for rank in range(2)]
    (finding,) = loaded(*ranks)
    assert (finding.kind, finding.ranks, finding.step) == ("order-never-changes", (0, 1), 16)
    assert "set_epoch" in str(finding.cure)


def test_an_order_that_is_not_shuffled_is_wanted() -> None:
    ranks = [[epoch(range(rank, 64, 2), number=n) for n in (1, 2)] for rank in range(2)]
    assert loaded(*ranks) == []


def test_a_sampler_for_more_ranks_than_there_are_leaves_samples_out() -> None:
    four = {"num_replicas": 4}
    (finding,) = loaded(
        *[[epoch(shuffled(0)[r::4], size_of_batch=4, options=four)] for r in (0, 1)]
    )
    assert (finding.kind, finding.ranks) == ("missing-samples", ())
    assert "32 of 64" in finding.summary


def test_shares_that_two_ranks_take_each_are_missed_in_every_epoch() -> None:
    """LOCAL_RANK in place of the rank, on two nodes."""
    local = [
        [
            epoch(shuffled(n)[rank % 2 :: 4], number=n, size_of_batch=4, options=options)
            for n in (1, 2)
        ]
        for rank in range(4)
        for options in [{"num_replicas": 4, "rank": rank % 2}]
    ]
    found = [one for one in loaded(*local) if one.kind == "missing-samples"]
    assert found
    assert {one.summary for one in found[:1]} == {
        "32 of 64 samples are trained on by no rank in epoch 1: nobody takes shares 2, 3 of the "
        "sampler's 4, since ranks 0, 2 all take share 0 and ranks 1, 3 share 1"
    }
    assert {one.ranks for one in found} == {(2, 3)}
    assert "LOCAL_RANK" in str(found[0].cure)


def test_ranks_that_hold_parts_of_one_model_take_one_share() -> None:
    ranks = [
        [epoch(shuffled(n)[rank // 2 :: 2], number=n, options={"rank": rank // 2}) for n in (1, 2)]
        for rank in range(4)
    ]
    assert [one for one in loaded(*ranks) if one.kind == "missing-samples"] == []


def test_samples_missing_from_several_epochs_are_counted_over_them() -> None:
    few = [
        [
            epoch(range(r, 44, 2), number=n, sampler="Own", options={"num_replicas": 2})
            for n in (1, 2)
        ]
        for r in (0, 1)
    ]
    (finding,) = loaded(*few)
    assert finding.summary == "20 of 64 samples are trained on by no rank in 2 whole epochs"


def test_samples_that_are_chosen_anew_in_each_epoch_or_more_and_more_are_not_missing() -> None:
    def chosen(sets: list[list[int]]) -> list[Any]:
        return [
            [epoch(own[r::2], number=n, sampler="Own") for n, own in enumerate(sets, start=1)]
            for r in (0, 1)
        ]

    assert loaded(*chosen([list(range(40)), list(range(40)), list(range(52))])) == []
    assert loaded(*chosen([shuffled(n)[:36] for n in (1, 2)])) == []
    (finding,) = loaded(*chosen([list(range(44))] * 3))
    assert finding.summary == "20 of 64 samples are trained on by no rank in 3 whole epochs"


def test_a_tail_an_epoch_broken_off_and_a_part_of_the_data_are_not_missing() -> None:
    order = shuffled(0)[:50]
    assert loaded(*[[epoch(order[r::2], number=n) for n in (1,)] for r in (0, 1)]) == []
    broken = [[epoch(shuffled(n)[r::4], number=n, whole=False) for n in (1, 2)] for r in (0, 1)]
    assert loaded(*broken) == []
    within = bits(range(32), 64)
    part = [
        [epoch([i for i in shuffled(n) if i < 32][r::2], number=n, within=within) for n in (1, 2)]
        for r in (0, 1)
    ]
    assert loaded(*part) == []
