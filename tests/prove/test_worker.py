"""The proof among real ranks: it holds where training is right, and fails where it is broken."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from lab.prove import Matrix, Recipe, Report, trace, worker
from lab.prove.matrix import recipes
from tests.prove.breaks import BREAKS, NOTHING
from tests.ranks import RankPool


def run_worker(broken: str, out: Path, *arguments: str) -> int:
    found = BREAKS.get(broken, NOTHING)
    with found.patch():
        words = [*found.arguments.split(), *arguments]
        return worker.main(["--out", str(out), "--quiet", "--steps", "8", *words])


def read(path: Path) -> Report:
    return Report.from_json(json.loads(path.read_text()))


@pytest.mark.parametrize("impl", ["ours", "torch", "minimal"])
@pytest.mark.parametrize("world_size", [1, 3])
def test_ranks_equal_one_process(
    ranks: RankPool, tmp_path: Path, world_size: int, impl: str
) -> None:
    out = tmp_path / "report.json"
    codes = ranks.run(world_size, run_worker, "none", out, "--impl", impl, "--steps", "12")
    assert codes == [0] * world_size
    report = read(out)
    assert report.ok
    assert report.ranks_equal
    assert report.place.world_size == world_size
    assert report.recipe.impl == impl
    assert [rank.rank for rank in report.ranks] == list(range(world_size))
    assert [step.step for step in report.steps] == list(range(1, 13))
    assert len({step.epoch for step in report.steps}) > 1
    assert report.gradient_difference < 1e-7
    assert 0 < report.ranks[-1].gradient_norm < 100
    assert report.batch_difference < 1e-7
    assert report.bitwise is (world_size == 1)


def run_all(out: Path, *arguments: str) -> int:
    return worker.main(["--all", "--quiet", "--steps", "2", "--out", str(out), *arguments])


@pytest.mark.parametrize(
    "options", ["", "--all-reduce ordered", "--parallel zero2", "--parallel fsdp"]
)
def test_eight_ranks(ranks: RankPool, tmp_path: Path, options: str) -> None:
    out = tmp_path / "report.json"
    assert ranks.run(8, run_worker, "none", out, *options.split(), "--steps", "3") == [0] * 8
    assert read(out).bitwise is bool(options)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, pytest.param(8, marks=pytest.mark.slow)])
def test_every_method_with_every_option_equals_one_process(
    ranks: RankPool, tmp_path: Path, world_size: int
) -> None:
    out = tmp_path / "report.json"
    codes = ranks.run(world_size, run_all, out)
    matrix = Matrix.from_json(json.loads(out.read_text()))
    assert matrix.ok, matrix.verdict
    assert codes == [0] * world_size
    wanted = [recipe.title for recipe in recipes(Recipe(steps=2), world_size)]
    assert [report.recipe.title for report in matrix.reports] == wanted
    for report in matrix.reports:
        assert len(report.steps) == 2
        assert report.bitwise or not report.demand.bitwise
        assert report.optimizer_difference < 1e-3
        assert report.round_trip.shards
        assert report.round_trip.state_dict is (True if report.recipe.parallel == "fsdp" else None)


def test_torchs_fsdp_sends_a_third_more_than_it_needs(ranks: RankPool, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    assert ranks.run(2, run_worker, "none", out, "--parallel", "fsdp", "--impl", "torch") == [0, 0]
    report = read(out)
    assert report.wire.ratio == pytest.approx(4 / 3, abs=0.02), "gloo's reduce-scatter"
    assert report.memory.held == report.memory.expected


def refused(out: Path) -> int:
    dist.barrier()  # else the first to be refused may leave while others still connect
    code = run_worker("none", out, "--impl", "ours", "--parallel", "none")
    dist.barrier()
    return code


def test_without_parallelism_two_ranks_are_refused(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(2, refused, tmp_path / "no.json") == [2, 2]


def test_sgd_too(ranks: RankPool, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    assert ranks.run(3, run_worker, "none", out, "--optimizer", "sgd") == [0, 0, 0]
    assert read(out).recipe.optimizer == "sgd"


@pytest.mark.parametrize("broken", BREAKS)
def test_what_is_broken_is_caught(ranks: RankPool, tmp_path: Path, broken: str) -> None:
    out = tmp_path / "report.json"
    assert ranks.run(3, run_worker, broken, out) == [1, 0, 0], "rank 0 judges"
    report = read(out)
    assert not report.ok
    assert report.verdict.startswith("NOT ")
    assert BREAKS[broken].words in report.verdict
    assert report.ranks_equal is not BREAKS[broken].ranks_differ
    first = report.first_unequal
    if broken == "OneWeightOff":
        assert first is not None
        assert first.step == 3


def test_the_guilty_rank_has_the_largest_difference(ranks: RankPool, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    ranks.run(3, run_worker, "OneWeightOff", out)
    differences = [rank.parameter_difference for rank in read(out).ranks]
    assert differences.index(max(differences)) == 2


def test_what_is_not_a_number_is_null_in_the_report(ranks: RankPool, tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    ranks.run(2, run_worker, "NotANumber", out)
    data = json.loads(out.read_text(), parse_constant=pytest.fail)
    assert data["gradient_difference"] is None
    assert data["ok"] is False


def different_batch() -> float:
    """The concatenated batch against ranks that did not average."""
    from lab.parallel import minimal
    from lab.training.world import World

    def skip(module: nn.Module, group: object = None) -> None:
        del module, group

    world = World(dist.get_rank(), dist.get_world_size(), torch.device("cpu"), "gloo")
    with patch.object(minimal, "all_reduce_grads_", skip):
        return worker.compare_one_batch(Recipe(), world)


def test_the_concatenated_batch_finds_missing_averages(ranks: RankPool) -> None:
    assert min(ranks.run(2, different_batch)) > 1e-3


def test_one_process_draws_the_ranks_batches_and_changes_nothing_by_running_twice() -> None:
    recipe = Recipe(steps=6)
    first, second = (trace.run_one_process(recipe, 3, torch.device("cpu")) for _ in range(2))
    assert first.sha256 == second.sha256
    assert len(set(first.sha256)) == 6
    assert first.epochs == [1, 1, 2, 2, 3, 3]
    sizes = [len(step[0][2]) for step in trace.batches(recipe, 2, 3)]
    assert sizes == [32, 16] * 3


def test_accumulated_microbatches_are_those_of_as_many_steps() -> None:
    one_by_one = list(trace.batches(Recipe(steps=6), 0, 2))
    by_three = list(trace.batches(Recipe(steps=2, accumulate=3), 0, 2))
    assert [len(step) for step in by_three] == [3, 3]
    flat = [microbatch for step in by_three for microbatch in step]
    for (epoch, inputs, _), ((other_epoch, other, _),) in zip(flat, one_by_one, strict=True):
        assert epoch == other_epoch
        assert torch.equal(inputs, other)


def test_epochs_are_shuffled_anew() -> None:
    drawn: dict[int, Tensor] = {
        epoch: inputs
        for ((epoch, inputs, _),) in trace.batches(Recipe(steps=2, batch_size=99), 0, 4)
    }
    assert drawn.keys() == {1, 2}
    assert not torch.equal(drawn[1], drawn[2])
