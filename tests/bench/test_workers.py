"""The sections of the benchmarks, tiny, on real ranks: that they measure; never how fast."""

import math
from typing import Any

import pytest

from lab.bench.suites import CHECKPOINT, COLLECTIVES, DDP, FSDP, GPT
from lab.bench.workers import checkpoint, collectives, ddp, fsdp, gpt
from lab.bench.workers.harness import Bench, Section
from lab.training.world import join_world
from tests.ranks import RankPool

SUITES = [
    (DDP, ddp.SECTIONS),
    (FSDP, fsdp.SECTIONS),
    (GPT, gpt.SECTIONS),
    (CHECKPOINT, checkpoint.SECTIONS),
    (COLLECTIVES, collectives.SECTIONS),
]
SECTIONS = [section for _, sections in SUITES for section in sections.values()]
RUNS = 2


def run(section: Section) -> list[dict[str, Any]]:
    """One rank's part."""
    with join_world() as world:
        bench = Bench(world, runs=RUNS, width=8, batch=4, max_bytes=16 << 10)
        rows = section(bench)
        assert all(bench.notes)
        return rows


def test_every_section_is_announced() -> None:
    for suite, sections in SUITES:
        assert list(suite.sections) == list(sections)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda s: f"{s.__module__}.{s.__name__}")
def test_rows_hold_positive_numbers(ranks: RankPool, section: Section) -> None:
    rows, others = ranks.run(2, run, section)
    assert len(rows) > 1
    for row in rows:
        assert len(row["all ms"]) == RUNS
        assert 0 < row["q1"] <= row["ms"] <= row["q3"] < math.inf
        assert list(row) == list(rows[0])  # one table, one set of columns
    # The time is that of the slowest rank, so all ranks have the same.
    assert [row["all ms"] for row in rows] == [row["all ms"] for row in others]


@pytest.mark.parametrize(
    ("section", "sent"),
    [
        # What rank 0 sends on 4 ranks, in 16ths of the whole tensor.
        (collectives.all_reduce, {"naive": 48, "ring": 24, "doubling": 32}),
        (collectives.all_gather, {"naive": 12, "ring": 12, "doubling": 12}),
        (collectives.reduce_scatter, {"naive": 12, "ring": 12}),
        (collectives.broadcast, {"naive": 48, "tree": 32, "ring": 24}),
    ],
)
def test_bytes_are_the_algorithms_own(
    ranks: RankPool, section: Section, sent: dict[str, int]
) -> None:
    rows = ranks.run(4, run, section)[0]
    for row in rows:
        if row["algorithm"] in sent:
            assert row["sent bytes"] == sent[row["algorithm"]] * row["bytes"] / 16
    assert {row["bytes"] for row in rows} == {1 << 10, 16 << 10}


def _agreed(rank_of_root: int) -> float:
    with join_world() as world:
        return Bench(world).agree(7.0 if world.rank == rank_of_root else 9.0)


def test_ranks_agree_on_rank_0s_value(ranks: RankPool) -> None:
    assert ranks.run(2, _agreed, 0) == [7, 7]
