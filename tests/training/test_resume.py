"""A training that is cut off and goes on is the one that was not, bit by bit."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lab.training.checkpoints import Checkpoints
from tests.ranks import RankPool
from tests.training.training_jobs import Job, Net, Result, dataset, furthest, train

DROPOUT = {"dropout": 0.4}
STEPS = 17
"""There are 6 steps an epoch of 8 samples, so epochs end at 6 and 12."""


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Random numbers from everywhere on top of each sample, as augmentation draws them."""

    def __len__(self) -> int:
        return len(dataset())

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        inputs, target = dataset()[index]
        noise = torch.randn(6) + random.random() + float(np.random.rand())
        return inputs + noise, target


def options(**more: Any) -> dict[str, Any]:
    """Everything that a step can depend on: warm-up, schedule, Adam, clipping, accumulation."""
    return {
        "steps": STEPS,
        "global_batch": 8,
        "batch_size": 2,
        "schedule": "cosine",
        "warmup": 3,
        "clip": 0.5,
        "save_every": 4,
        **more,
    }


def noisy(folder: Path, given: dict[str, Any], cut: int | None = None) -> Result:
    """Train with dropout and augmentation."""
    return train(folder, given, Job(DROPOUT, Noisy(), cut=cut))


def cut_off(folder: Path, given: dict[str, Any], cut: int) -> Result:
    """Be cut off after a step, without a word, and go on: the second part."""
    assert noisy(folder, given, cut).error == ""
    torch.manual_seed(0)
    return noisy(folder, {**given, "resume": True})


@pytest.mark.parametrize("cut", [5, 9, 16])
@pytest.mark.parametrize(
    ("parallel", "impl", "more"),
    [
        ("ddp", "ours", {}),
        ("fsdp", "ours", {"asynchronous": True}),
        ("zero2", "ours", {}),
        ("fsdp", "torch", {}),
    ],
)
def test_bitwise_the_same(
    ranks: RankPool, tmp_path: Path, parallel: str, impl: str, more: dict[str, Any], cut: int
) -> None:
    given = options(parallel=parallel, impl=impl, **more)
    whole = ranks.run(2, noisy, tmp_path / "whole", given)
    rest = ranks.run(2, cut_off, tmp_path / "cut", given, cut)
    assert [result.error for result in (*whole, *rest)] == [""] * 4
    assert rest[0].losses == whole[0].losses[cut // 4 * 4 :]
    for ours, theirs in zip(rest, whole, strict=True):
        for name, value in theirs.parameters.items():
            assert torch.equal(ours.parameters[name], value)


@pytest.mark.parametrize(
    ("size", "parallel", "impl"),
    [(1, "none", "ours"), (4, "fsdp", "ours"), (2, "zero1", "torch"), (2, "fsdp", "torch")],
)
def test_on_other_ranks_and_in_another_wrapper(
    ranks: RankPool, tmp_path: Path, size: int, parallel: str, impl: str
) -> None:
    """In the midst of the second epoch; a step has the same samples whoever takes them."""
    given = options(parallel="ddp")
    whole = ranks.run(2, train, tmp_path / "whole", given)[0]
    first = ranks.run(2, train, tmp_path / "cut", given, Job(cut=9))[0]
    go_on = {**given, "parallel": parallel, "impl": impl, "resume": True}
    rest = ranks.run(size, train, tmp_path / "cut", go_on)[0]
    assert (whole.error, first.error, rest.error) == ("", "", "")
    assert len(rest.losses) == STEPS - 8
    assert furthest(rest.losses, whole.losses[8:]) < 1e-6


def test_with_another_number_of_samples_a_step_no_sample_is_lost(
    ranks: RankPool, tmp_path: Path
) -> None:
    given = {"steps": None, "epochs": 3, "batch_size": 4, "save_every": 1}
    ranks.run(2, train, tmp_path, {**given, "parallel": "ddp"}, Job(cut=7))  # epoch 1 is done
    rest = ranks.run(1, train, tmp_path, {**given, "parallel": "none", "resume": True})[0]
    assert rest.error == ""
    ends = [(e["epoch"], e["step"]) for e in rest.events if e["event"] == "report"]
    assert ends == [(2, 6 + 12), (3, 6 + 24)]


def test_the_number_of_loading_processes_changes_nothing(tmp_path: Path) -> None:
    given = options(batch_size=8, steps=4, save_every=0)
    assert (
        noisy(tmp_path / "0", given).losses == noisy(tmp_path / "2", {**given, "workers": 2}).losses
    )


def test_a_launcher_that_starts_again_has_it_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = options(batch_size=8)
    train(tmp_path, given, Job(cut=9))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    assert len(train(tmp_path, given).losses) == STEPS - 8


def test_a_job_that_starts_again_does_not_go_on_with_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = options(batch_size=8)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    train(tmp_path, given, Job(cut=9))
    monkeypatch.setenv("SLURM_JOB_ID", "8")  # whose first attempt has ended before it came here
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    result = train(tmp_path, given, Job(cut=9))
    assert result.said[0].startswith("the checkpoints of an earlier training are in ")
    assert len(result.losses) == 9
    assert len(train(tmp_path, given).losses) == STEPS - 8


def test_it_says_from_where_it_goes_on(ranks: RankPool, tmp_path: Path) -> None:
    given = options(parallel="ddp", steps=6)
    ranks.run(2, train, tmp_path, given, Job(cut=5))
    first, second = ranks.run(2, train, tmp_path, {**given, "resume": True})
    assert first.said == [f"goes on from {tmp_path}/checkpoints/step-00000004, step 4"]
    assert second.said == []


def test_to_resume_from_nothing_is_refused_on_every_rank(ranks: RankPool, tmp_path: Path) -> None:
    for result in ranks.run(2, train, tmp_path, options(parallel="ddp", resume=True)):
        assert result.error.startswith("UsageError: --resume: there is no checkpoint in ")
        assert f"{tmp_path}/checkpoints. Name their folder by --checkpoints" in result.error
        assert "--resume auto begins" in result.error
        assert result.printed == []


def test_to_resume_where_there_is_something(tmp_path: Path) -> None:
    result = train(tmp_path, options(batch_size=8, resume="auto"))
    assert len(result.losses) == STEPS
    assert result.said == [
        f"there is no checkpoint in {tmp_path}/checkpoints: begins at the beginning"
    ]


def test_a_launcher_that_starts_again_before_the_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    result = train(tmp_path, options(batch_size=8))
    assert len(result.losses) == STEPS
    assert "begins at the beginning" in result.said[0]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As under lab run: the default folder of checkpoints is in the run's own directory."""
    monkeypatch.setenv("LAB_RUN_DIR", str(tmp_path / "runs/third"))
    return tmp_path / "runs"


def test_in_a_run_it_goes_on_from_the_last_other_run_that_saved(runs: Path, tmp_path: Path) -> None:
    given = options(batch_size=8)
    train(tmp_path, {**given, "checkpoints": runs / "second/checkpoints/training"}, Job(cut=9))
    train(tmp_path, {**given, "checkpoints": runs / "first/checkpoints/training"}, Job(cut=5))
    train(tmp_path, {**given, "checkpoints": runs / "fourth/checkpoints/other"}, Job(cut=13))
    own = {**given, "checkpoints": None, "resume": True}
    result = train(tmp_path, own, Job(cut=6))
    assert result.said == [f"goes on from {runs}/first/checkpoints/training/step-00000004, step 4"]
    assert not list((runs / "third/checkpoints/training").glob("step-*"))


def test_what_the_run_itself_saved_comes_first(runs: Path, tmp_path: Path) -> None:
    given = options(batch_size=8)
    own = {**given, "checkpoints": None, "resume": True}
    train(tmp_path, {**given, "checkpoints": runs / "first/checkpoints/training"}, Job(cut=5))
    train(tmp_path, own, Job(cut=9))
    result = train(tmp_path, own)
    assert result.said == [f"goes on from {runs}/third/checkpoints/training/step-00000008, step 8"]
    assert (runs / "first/checkpoints/training/step-00000004").exists()


def test_where_no_run_has_saved_that_is_said(runs: Path, tmp_path: Path) -> None:
    result = train(tmp_path, options(batch_size=8, checkpoints=None, resume=True))
    assert (
        f"no checkpoint in {runs}/third/checkpoints/training, nor in checkpoints/training of an "
        "earlier run"
    ) in result.error


def test_a_rollback_before_the_first_save_goes_to_where_it_came_from(
    runs: Path, tmp_path: Path
) -> None:
    given = options(batch_size=8, on_nan="rollback")
    train(tmp_path, {**given, "checkpoints": runs / "first/checkpoints/training"}, Job(cut=5))
    own = {**given, "checkpoints": None, "resume": True}
    result = train(tmp_path, own, Job(poison={6: 0}))
    assert result.error == ""
    again = [line for line in result.said if line.startswith("goes on from ")]
    assert again == [f"goes on from {runs}/first/checkpoints/training/step-00000004, step 4"] * 2


def test_two_trainings_in_one_folder_are_refused_before_training(
    ranks: RankPool, tmp_path: Path
) -> None:
    with Checkpoints(tmp_path / "checkpoints") as other:
        other.claim()
        for result in ranks.run(2, train, tmp_path, options(parallel="ddp")):
            assert f"another training saves in {tmp_path}/checkpoints: process " in result.error
            assert result.printed == []
        assert train(tmp_path, options(save_every=0, batch_size=8)).error == "", "it saves nothing"


def test_a_folder_that_cannot_be_written_is_known_before_training(
    ranks: RankPool, tmp_path: Path
) -> None:
    (tmp_path / "checkpoints").touch()
    for result in ranks.run(2, train, tmp_path, options(parallel="ddp")):
        assert f"cannot write checkpoints in {tmp_path}/checkpoints: Not a dir" in result.error
        assert result.printed == []


def test_the_folder_is_free_after_a_training_that_failed(tmp_path: Path) -> None:
    failed = train(tmp_path, options(batch_size=8), Job(poison={2: 0}))
    assert "not finite" in failed.error
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_finished_training_has_nothing_left_to_do(tmp_path: Path) -> None:
    given = options(batch_size=8)
    whole = train(tmp_path, given)
    again = train(tmp_path, {**given, "resume": True})
    assert (again.error, again.losses) == ("", [])
    for name, value in whole.parameters.items():
        assert torch.equal(again.parameters[name], value)


def test_a_new_training_leaves_the_old_checkpoints_alone(tmp_path: Path) -> None:
    given = options(batch_size=8)
    train(tmp_path, given)
    old = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    second = train(tmp_path, {**given, "lr": 0.1, "steps": 4})
    assert second.error == ""
    assert any(f"{tmp_path / 'checkpoints'}.1" in line for line in second.said)
    assert sorted(path.name for path in (tmp_path / "checkpoints.1").iterdir()) == old


@pytest.mark.parametrize(
    ("change", "message"),
    [({"seed": 1}, "with --seed 42, and this one has 1"), ({}, "with samples 48, and this one")],
)
def test_another_trainings_checkpoint_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    train(tmp_path, options(batch_size=8), Job(cut=5))
    job = Job() if change else Job(data=dataset(40))
    result = train(tmp_path, options(batch_size=8, resume=True, **change), job)
    assert message in result.error
    assert "--checkpoints FOLDER" in result.error


def test_a_checkpoint_that_no_trainer_saved_is_refused(tmp_path: Path) -> None:
    net = Net()
    Checkpoints(tmp_path / "checkpoints").save(3, net, torch.optim.Adam(net.parameters()), {"n": 3})
    result = train(tmp_path, options(batch_size=8, resume=True))
    assert "was saved by something else than this Trainer" in result.error
