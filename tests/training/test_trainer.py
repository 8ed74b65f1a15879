"""The Trainer's numbers: the same training whatever the ranks, the wrapper and the microbatches."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import TensorDataset

from lab.training.options import Options
from lab.training.order import Order, Position
from lab.training.recompute import recompute_in_backward
from lab.training.seeding import seed_all
from lab.training.world import World
from lab.training.wrapping import Wrapped
from tests.ranks import RankPool
from tests.training.training_jobs import (
    SAMPLES,
    WRAPPERS,
    Job,
    Net,
    Result,
    dataset,
    furthest,
    train,
)


def equal(ours: Result, theirs: Result, tolerance: float = 1e-6) -> None:
    """Same losses at every step and same weights at the end."""
    assert (ours.error, theirs.error) == ("", "")
    assert furthest(ours.losses, theirs.losses) <= tolerance
    assert ours.parameters.keys() == theirs.parameters.keys()
    for name, value in ours.parameters.items():
        torch.testing.assert_close(value, theirs.parameters[name], atol=tolerance, rtol=0)


@pytest.fixture(scope="module")
def one_process(ranks: RankPool, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The reference: one rank that accumulates four microbatches, by options; kept."""
    kept: dict[str, Result] = {}

    def run(**options: Any) -> Result:
        key = str(sorted(options.items()))
        if key not in kept:
            folder = tmp_path_factory.mktemp("one")
            given = {"parallel": "none", "global_batch": 16, **options}
            kept[key] = ranks.run(1, train, folder, given)[0]
        return kept[key]

    return run


@pytest.mark.parametrize(("parallel", "impl"), WRAPPERS)
def test_all_wrappers_train_as_one_process(
    ranks: RankPool, tmp_path: Path, one_process: Any, parallel: str, impl: str
) -> None:
    options = {"parallel": parallel, "impl": impl, "global_batch": 16, "clip": 0.5}
    results = ranks.run(2, train, tmp_path, options)
    equal(results[0], one_process(clip=0.5))
    for name, value in results[1].parameters.items():
        assert torch.equal(value, results[0].parameters[name])


@pytest.mark.parametrize("world_size", [1, 4])
@pytest.mark.parametrize("parallel", ["ddp", "fsdp", "zero2"])
def test_the_global_batch_makes_the_world_size_irrelevant(
    ranks: RankPool, tmp_path: Path, one_process: Any, parallel: str, world_size: int
) -> None:
    options = {"parallel": parallel, "global_batch": 16}
    equal(ranks.run(world_size, train, tmp_path, options)[0], one_process())


@pytest.mark.parametrize(("parallel", "impl"), [("none", "ours"), *WRAPPERS])
def test_accumulated_microbatches_are_one_larger_batch(
    ranks: RankPool, tmp_path: Path, parallel: str, impl: str
) -> None:
    size = 1 if parallel == "none" else 2
    given = {"parallel": parallel, "impl": impl}
    several, one = (
        ranks.run(size, train, tmp_path / str(k), {**given, "batch_size": 8 // k, "accumulate": k})
        for k in (4, 1)
    )
    equal(several[0], one[0])


@pytest.mark.parametrize(("parallel", "impl"), WRAPPERS)
def test_clipping_is_by_the_norm_of_the_whole_gradient(
    ranks: RankPool, tmp_path: Path, one_process: Any, parallel: str, impl: str
) -> None:
    """With plain SGD: Adam would not notice a factor."""
    given = {"global_batch": 16, "clip": 0.05, "lr": 0.5, "steps": 3}
    sgd = Job(trainer={"optimizer": torch.optim.SGD})
    alone, free = (
        ranks.run(1, train, tmp_path / name, {**given, **more}, sgd)[0]
        for name, more in (("clipped", {}), ("free", {"clip": None}))
    )
    assert furthest(alone.losses, free.losses) > 1e-3, "the bound does not bind"
    options = {**given, "parallel": parallel, "impl": impl}
    equal(ranks.run(2, train, tmp_path / "ranks", options, sgd)[0], alone)


def padded() -> TensorDataset:
    """The usual data set, of which most samples do not count: those of some microbatches none."""
    inputs, targets = dataset().tensors
    return TensorDataset(inputs, targets.where(torch.arange(SAMPLES) % 5 < 2, -100))


def counted(batch: Any) -> Tensor:
    counts: Tensor = (batch[1] != -100).sum()
    return counts


@pytest.mark.parametrize(("parallel", "impl"), [("none", "ours"), *WRAPPERS])
@pytest.mark.parametrize("batch_size", [2, 4])
def test_unequal_counts_weigh_as_in_one_process_with_one_batch(
    ranks: RankPool, tmp_path: Path, parallel: str, impl: str, batch_size: int
) -> None:
    """With plain SGD, and clipped: Adam would not notice a factor. No mean of means."""
    given = {"steps": 4, "lr": 0.5, "clip": 0.5}
    job = Job(data=padded(), trainer={"optimizer": torch.optim.SGD, "count": counted})
    whole = ranks.run(1, train, tmp_path / "1", {**given, "batch_size": 16}, job)[0]
    size = 1 if parallel == "none" else 2
    options = {**given, "parallel": parallel, "impl": impl}
    options |= {"batch_size": batch_size, "global_batch": 16}
    equal(ranks.run(size, train, tmp_path / "2", options, job)[0], whole)

    # And that is the mean over what counts.
    model, (inputs, targets) = (
        seeded_net(),
        (torch.stack(part) for part in zip(*first(16), strict=True)),
    )
    mean = cross_entropy(model(inputs), targets)
    assert whole.losses[0] == pytest.approx(mean.item(), abs=1e-6)


def seeded_net() -> Net:
    seed_all(42)
    return Net()


def first(samples: int) -> list[Any]:
    """Those of a training's first step."""
    return [padded()[index] for index in Order(SAMPLES, samples, seed=42).step(Position())]


def test_a_step_of_which_nothing_counts_changes_nothing(tmp_path: Path) -> None:
    inputs, targets = dataset().tensors
    job = Job(
        data=TensorDataset(inputs, torch.full_like(targets, -100)), trainer={"count": counted}
    )
    result = train(tmp_path, {"steps": 2}, job)
    assert result.error == ""
    for name, value in seeded_net().named_parameters():
        assert torch.equal(value, result.parameters[name])


@pytest.mark.parametrize(("parallel", "impl"), WRAPPERS)
def test_bfloat16_trains_alike_and_keeps_float32_weights(
    ranks: RankPool, tmp_path: Path, one_process: Any, parallel: str, impl: str
) -> None:
    options = {"parallel": parallel, "impl": impl, "global_batch": 16, "precision": "bfloat16"}
    result = ranks.run(2, train, tmp_path, options)[0]
    assert {value.dtype for value in result.parameters.values()} == {torch.float32}
    half = one_process(precision="bfloat16")
    assert 1e-5 < furthest(half.losses, one_process().losses) < 0.02, "bfloat16 was not used"
    assert furthest(result.losses, half.losses) < 1e-3


@pytest.mark.parametrize(("parallel", "impl"), [("none", "ours"), *WRAPPERS])
def test_activation_checkpointing_changes_nothing_but_memory(
    ranks: RankPool, tmp_path: Path, parallel: str, impl: str
) -> None:
    """With dropout, whose random numbers the second forward must draw again, and with running
    statistics, which it must not move."""
    size = 1 if parallel == "none" else 2
    given = {"parallel": parallel, "impl": impl, "accumulate": 2}
    kept, again = (
        ranks.run(
            size,
            train,
            tmp_path / str(twice),
            {**given, "activation_checkpointing": twice},
            Job({"dropout": 0.3, "batchnorm": True, "block": True}),
        )
        for twice in (False, True)
    )
    equal(again[0], kept[0], tolerance=0)
    assert kept[0].buffers.keys() >= {"0.1.running_mean", "0.1.num_batches_tracked"}
    for name, value in kept[0].buffers.items():
        assert torch.equal(value, again[0].buffers[name])


def test_a_copy_of_a_recomputed_module_computes_with_its_own_weights() -> None:
    net = Net()
    recompute_in_backward(net)
    twin = copy.deepcopy(net)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert not twin(torch.ones(1, 6)).any()
    assert isinstance(twin, Net)
    assert list(twin.state_dict()) == list(Net().state_dict())


@pytest.mark.parametrize("parallel", ["ddp", "fsdp", "zero2"])
def test_synchronised_batchnorm_is_one_process_with_the_whole_batch(
    ranks: RankPool, tmp_path: Path, parallel: str
) -> None:
    given = {"steps": 4, "sync_batchnorm": True}
    alone = ranks.run(
        1, train, tmp_path / "1", {**given, "batch_size": 16}, Job({"batchnorm": True})
    )
    options = {**given, "batch_size": 8, "parallel": parallel}
    equal(ranks.run(2, train, tmp_path / "2", options, Job({"batchnorm": True}))[0], alone[0])


def test_scores_are_means_over_all_held_out_samples(ranks: RankPool, tmp_path: Path) -> None:
    """10 samples in batches of 4: on 1 rank 4 + 4 + 2, on 4 ranks 3, 3, 2 and 2."""
    accuracies = []
    for world_size, parallel in ((1, "none"), (3, "ddp"), (4, "fsdp"), (4, "zero2")):
        options = {"parallel": parallel, "batch_size": 48 // 4 // world_size, "steps": 2}
        folder = tmp_path / f"{world_size}-{parallel}"
        events = ranks.run(world_size, train, folder, options)[0].events
        accuracies.append([e["accuracy"] for e in events if e["event"] == "report"])
    assert accuracies[1:] == [accuracies[0]] * 3
    assert all(round(accuracy * 10) / 10 == accuracy for accuracy in accuracies[0])


def test_each_rank_draws_its_own_dropout(ranks: RankPool, tmp_path: Path) -> None:
    options = {"parallel": "ddp", "steps": 1}
    first, second = ranks.run(2, random_numbers, tmp_path, options)
    assert first != second
    assert (first, second) == tuple(ranks.run(2, random_numbers, tmp_path, options))


def random_numbers(folder: Path, options: dict[str, Any]) -> list[float]:
    """What dropout would draw after a step."""
    train(folder, options)
    return torch.rand(3).tolist()


class Norms(TorchDispatchMode):
    """Counts the norms that are computed of one tensor each."""

    single = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.single += "vector_norm" in str(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf])
def test_weights_are_looked_at_all_at_once(bad: float | None) -> None:
    """On a GPU one kernel for each of many small weights would take as long as the step."""
    world = World(0, 1, torch.device("cpu"), "none")
    layers = [nn.Linear(2, 2) for _ in range(8)]
    nn.init.constant_(layers[3].weight, -7.0)
    if bad is not None:
        nn.init.constant_(layers[5].bias, bad)
    wrapped = Wrapped(nn.Sequential(*layers), torch.optim.SGD, Options(), world)
    with Norms() as norms:  # type: ignore[no-untyped-call]  # torch has no annotations there
        largest = float(wrapped.largest_weight())
    assert norms.single <= 1
    assert largest == 7.0 if bad is None else not math.isfinite(largest)
