"""What a training refuses, and what it says when the loss is not a number."""

import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from lab.errors import UsageError
from lab.training.classification import classification_loss
from lab.training.mlp import main
from lab.training.options import Options, microbatches
from lab.training.order import Order, Position
from tests.ranks import RankPool
from tests.training.training_jobs import SAMPLES, WRAPPERS, Job, dataset, train


def test_a_global_batch_that_does_not_divide_says_which_would() -> None:
    assert microbatches(Options(global_batch=96, batch_size=8), 4) == 3
    with pytest.raises(
        ValueError, match="--global-batch 100 does not divide among 4 ranks"
    ) as error:
        microbatches(Options(global_batch=100, batch_size=8), 4)
    assert "make it 96 or 128" in str(error.value)
    with pytest.raises(UsageError, match="make it 32, or"):
        microbatches(Options(global_batch=20, batch_size=8), 4)
    with pytest.raises(UsageError, match="--accumulate follows from --global-batch"):
        microbatches(Options(global_batch=96, batch_size=8, accumulate=2), 4)


@pytest.mark.parametrize(
    ("options", "samples", "message"),
    [
        ({}, 1, "UsageError: 1 samples are too few for 2 ranks"),
        ({}, 0, "UsageError: 0 samples are too few for 2 ranks"),
        ({"parallel": "none"}, 48, "UsageError: --parallel none on 2 ranks would train 2 models"),
        ({"parallel": "zero2", "impl": "torch"}, 48, "UsageError: PyTorch has no zero2"),
        ({"parallel": "fsdp", "impl": "minimal"}, 48, "UsageError: MinimalDDP is ddp only"),
        ({"impl": "torch", "sync_batchnorm": True}, 48, "PyTorch's SyncBatchNorm needs a GPU"),
        ({"global_batch": 9}, 48, "UsageError: --global-batch 9 does not divide"),
    ],
)
def test_refused_on_every_rank(
    ranks: RankPool, tmp_path: Path, options: dict[str, Any], samples: int, message: str
) -> None:
    for result in ranks.run(
        2, train, tmp_path, options, Job({"batchnorm": True}, dataset(samples))
    ):
        assert message in result.error
        assert result.printed == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--accumulate 0", "argument --accumulate: '0' must be a whole number, at least 1"),
        ("--steps 0", "argument --steps: '0' must be"),
        ("--clip 0", "argument --clip: '0' must be a number above 0"),
        ("--layers 0", "argument --layers: '0' must be"),
        ("--on-nan ignore", "argument --on-nan: invalid choice: 'ignore'"),
        ("--steps 3 --epochs 2", "argument --epochs: not allowed with argument --steps"),
    ],
)
def test_wrong_arguments_end_with_one_line(
    arguments: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments.split())
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"accumulate": 0}, "accumulate is 0, and must be at least 1"),
        ({"batch_size": -1}, "batch_size is -1, and must be at least 1"),
        ({"steps": 0}, "steps is 0, and must be at least 1"),
        ({"lr": 0.0}, "lr is 0.0, and must be above 0"),
        ({"clip": float("nan")}, "clip is nan, and must be above 0"),
    ],
)
def test_wrong_options_are_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Options(**given)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_a_loss_that_is_not_a_number_ends_it_and_names_step_and_rank(
    ranks: RankPool, tmp_path: Path, parallel: str
) -> None:
    """Though it is found later, with the other steps of the table's line, and spreads by then."""
    options = {"parallel": parallel, "steps": 12, "report_every": 6, "save_every": 6}
    for result in ranks.run(2, train, tmp_path, options, Job(poison={8: 1})):
        assert "LabError: the loss at step 8 on rank 1 is not finite" in result.error
        assert "--on-nan rollback" in result.error
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000006"]


@pytest.mark.parametrize("parallel", ["ddp", "fsdp", "zero2"])
def test_rollback_goes_on_from_the_checkpoint_without_those_data(
    ranks: RankPool, tmp_path: Path, parallel: str
) -> None:
    options = {
        "parallel": parallel,
        "steps": 12,
        "save_every": 3,
        "report_every": 2,
        "on_nan": "rollback",
    }
    results = ranks.run(2, train, tmp_path, options, Job(poison={5: 0}))
    assert [result.error for result in results] == ["", ""]
    said = "the loss at step 5 on rank 0 is not finite: back to step 3, then without the data of"
    assert faults(results[0].said) == [f"{said} step 5"]
    kinds = [(e["event"], e["step"]) for e in results[0].events if e["event"] in ("nan", "report")]
    assert kinds == [
        ("report", 2),
        ("report", 4),
        ("nan", 5),
        *(("report", n) for n in (4, 6, 8, 10, 12)),
    ]
    assert all(torch.isfinite(value).all() for value in results[1].parameters.values())
    saved = [e for e in results[0].events if e["event"] == "save"]
    assert [e["step"] for e in saved] == [3, 6, 9, 12]


@pytest.mark.parametrize(
    ("parallel", "impl"),
    [("none", "ours"), *WRAPPERS],
)
def test_a_gradient_that_is_not_finite_is_never_saved_and_names_step_and_rank(
    ranks: RankPool, tmp_path: Path, parallel: str, impl: str
) -> None:
    """Though the loss is finite, and the next one would be the first that is not: after a save."""
    size = 1 if parallel == "none" else 2
    options = {"parallel": parallel, "impl": impl, "accumulate": 2, "clip": 1.0}
    options |= {"steps": 6, "report_every": 6, "save_every": 3}
    job = Job(poison={6: size - 1}, poison_gradient=True)
    for result in ranks.run(size, train, tmp_path, options, job):
        assert result.error.startswith(
            f"LabError: the gradient at step 6 on rank {size - 1} is not finite"
        )
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000003"]
    options |= {"on_nan": "rollback", "resume": True}
    results = ranks.run(size, train, tmp_path, options, job)
    assert [result.error for result in results] == [""] * size
    assert [e["step"] for e in results[0].events if e["event"] == "save"] == [6]
    assert all(value.isfinite().all() for value in results[-1].parameters.values())


class Spoils(torch.optim.SGD):
    """A step that is wrong though its gradient is right, as one of Adam's with eps=0 may be."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        super().step()
        self.steps += 1
        if self.steps == 3:
            with torch.no_grad():
                self.param_groups[0]["params"][-1].fill_(math.inf)
        return None


def test_an_update_that_is_not_finite_is_never_saved(tmp_path: Path) -> None:
    """And it is named, not the loss that it makes of the next step, before the ranks look."""
    options = {"steps": 6, "save_every": 6, "report_every": 0}
    result = train(tmp_path, options, Job(trainer={"optimizer": Spoils}))
    assert result.error.startswith("LabError: the update at step 3 on rank 0 is not finite")
    assert not list((tmp_path / "checkpoints").glob("step*"))


@pytest.mark.parametrize("impl", ["ours", "torch"])
def test_a_gradient_that_overflows_where_no_rank_sees_its_own_is_left_out_with_its_step(
    ranks: RankPool, tmp_path: Path, impl: str
) -> None:
    """What flows back to a sharded layer is finite: its product with these inputs is not."""
    far = torch.zeros(SAMPLES, 1)
    far[17] = 3e38
    inputs, targets = dataset().tensors
    data = TensorDataset(torch.cat([inputs, far], dim=1), targets)
    job = Job({"offset": True}, trainer={"loss": steep_loss})
    options = {"parallel": "fsdp", "impl": impl, "steps": None, "epochs": 1, "batch_size": 1}
    options |= {"save_every": 1, "on_nan": "rollback"}
    assert [result.error for result in ranks.run(2, train, tmp_path, options, job)] == ["", ""]
    options |= {"epochs": 2, "resume": True}
    results = ranks.run(2, train, tmp_path, options, replace(job, data=data))
    assert [result.error for result in results] == ["", ""]
    (line,) = faults(results[0].said)
    (step,) = bad_steps(results[0].events)
    assert line.startswith(f"the update at step {step} on rank 0 is not finite")
    position = Position(1, 2 * (step - SAMPLES // 2 - 1))
    assert 17 in Order(SAMPLES, 2, Options().seed).step(position)


def steep_loss(model: nn.Module, batch: Any) -> Tensor:
    return 1e6 * classification_loss(model, batch)


@pytest.mark.parametrize("bad", [9, 10, 12])
def test_rollback_near_the_end_still_trains_to_the_end(tmp_path: Path, bad: int) -> None:
    """12 steps in 2 epochs, saved after the first: only the data of the bad step are left out."""
    options = {"epochs": 2, "steps": None, "batch_size": 8, "save_every": 1, "on_nan": "rollback"}
    result = train(tmp_path, options, Job(poison={bad: 0}))
    assert result.error == ""
    steps = [(e["event"], e["step"]) for e in result.events if e["event"] != "start"]
    assert steps == [
        *[("report", 6), ("save", 6), ("nan", bad)],
        *[("report", 11), ("save", 11), ("end", 11)],
    ]
    again = train(tmp_path, {**options, "resume": True, "epochs": 3})
    assert [e["step"] for e in again.events if e["event"] == "report"] == [17]


def test_rollback_from_the_very_last_step_ends_with_what_was_saved_before(tmp_path: Path) -> None:
    options = {"epochs": 1, "steps": None, "batch_size": 48, "save_every": 1}
    assert train(tmp_path, options).error == ""
    go_on = {**options, "epochs": 2, "resume": True, "on_nan": "rollback"}
    result = train(tmp_path, go_on, Job(poison={2: 0}))
    assert (result.error, result.events[-1]["event"]) == ("", "end")
    assert result.events[-2]["accuracy"] >= 0, "it is judged once more"


def test_data_that_failed_stay_left_out_however_often_it_goes_back(tmp_path: Path) -> None:
    data = WithNaN([3, 17])
    options: dict[str, Any] = {"steps": None, "batch_size": 1, "save_every": 1, "epochs": 2}
    options["on_nan"] = "rollback"
    result = train(tmp_path, options, Job(data=data))
    assert "there is no checkpoint to go back to" in result.error
    assert train(tmp_path, {**options, "epochs": 1}).error == ""
    again = train(tmp_path, {**options, "resume": True}, Job(data=data))
    assert again.error == ""
    assert [line.split(":")[0] for line in faults(again.said)] == [
        f"the loss at step {step} on rank 0 is not finite" for step in bad_steps(again.events)
    ]
    assert again.events[-1]["step"] == 2 * 48 - 2


def faults(said: list[str]) -> list[str]:
    """Without where it goes on from."""
    return [line for line in said if "is not finite" in line]


def bad_steps(events: list[dict[str, Any]]) -> list[int]:
    return [event["step"] for event in events if event["event"] == "nan"]


class WithNaN(Dataset[Any]):
    """The usual data set, with samples that are not numbers."""

    def __init__(self, bad: list[int]) -> None:
        self.bad = bad

    def __len__(self) -> int:
        return len(dataset())

    def __getitem__(self, index: int) -> Any:
        inputs, target = dataset()[index]
        return inputs * (math.nan if index in self.bad else 1), target


def test_rollback_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    options = {"on_nan": "rollback", "save_every": 5}
    error = train(tmp_path, options, Job(poison={2: 0})).error
    assert "step 2 on rank 0 is not finite, and there is no checkpoint to go back to" in error


def test_a_training_that_always_diverges_is_given_up(tmp_path: Path) -> None:
    options = {"on_nan": "rollback", "save_every": 1, "steps": 9}

    result = train(tmp_path, options, Job(poison=dict.fromkeys(range(3, 99), 0), poison_again=True))
    assert "is not finite, after 3 times of going back" in result.error


def test_events_are_json_also_of_a_training_that_ends_badly(tmp_path: Path) -> None:
    train(tmp_path, {}, Job(poison={3: 0}))
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [event["event"] for event in events] == ["start", "report", "report", "nan"]
    assert [events[-1][name] for name in ("step", "rank", "what")] == [3, 0, "loss"]


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"events": Path("file/below")}, "LabError: the events' file file/below: File exists"),
        (
            {"tensorboard": Path("board")},
            "UsageError: --tensorboard needs TensorBoard: pip install",
        ),
        (
            {"save_every": 1, "checkpoints": Path("old/1")},
            "LabError: the checkpoints of an earlier",
        ),
    ],
)
def test_what_rank_0_alone_cannot_do_is_told_by_all(
    ranks: RankPool, tmp_path: Path, options: dict[str, Any], what: str
) -> None:
    """None goes on and says that it lost rank 0."""
    for result in ranks.run(2, train_where_nothing_works, tmp_path, options):
        assert result.error.startswith(what)
        assert result.printed == []


def train_where_nothing_works(folder: Path, options: dict[str, Any]) -> Any:
    """On a rank: in a folder where rank 0 can write nothing new."""
    (folder / "old/1/step-00000001").mkdir(parents=True, exist_ok=True)
    (folder / "file").touch()
    before = Path.cwd()
    os.chdir(folder)
    main_rank = os.environ["RANK"] == "0"
    try:
        with pytest.MonkeyPatch.context() as patch:
            if main_rank:
                patch.setitem(sys.modules, "torch.utils.tensorboard", None)
                patch.setattr(Path, "rename", _denied)
            return train(folder, options)
    finally:
        os.chdir(before)


def _denied(*_: object) -> None:
    raise PermissionError(13, "Permission denied")


def test_where_no_trace_can_be_written_it_is_said_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = train(tmp_path, {"profile": tmp_path / "file/below"}, Job())
    assert result.error == f"LabError: --profile {tmp_path / 'file/below'}: Not a directory"
    assert result.printed == []


def test_there_is_no_going_back_without_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--on-nan rollback needs checkpoints"):
        Options(on_nan="rollback", save_every=0)


def test_held_out_data_of_no_sample_is_not_evaluated_on(tmp_path: Path) -> None:
    result = train(tmp_path, {"evaluate_every": 1}, Job(trainer={"held_out": dataset(0)}))
    assert result.error == ""
    reports = [event for event in result.events if event["event"] == "report"]
    assert reports
    assert not any("accuracy" in event for event in reports)
