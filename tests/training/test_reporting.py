"""What a training says: the table, events, TensorBoard, traces, and nothing but text when piped."""

import json
import math
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from lab.training.classification import classification_loss
from lab.training.measuring import covered, flops_of, reachable_flops
from lab.training.order import Order, Position
from tests.ranks import RankPool
from tests.training.training_jobs import Job, dataset, train

ROOT = Path(__file__).parents[2]
MLP = [sys.executable, "-m", "lab.training.mlp", "--steps", "3", "--save-every", "0"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TERM": "xterm"}


def test_only_rank_0_speaks(ranks: RankPool, tmp_path: Path) -> None:
    options = {"parallel": "fsdp", "steps": 4, "report_every": 2, "evaluate_every": 4}
    first, second = ranks.run(2, train, tmp_path, options)
    assert second.printed == second.said == []
    assert first.printed[0].startswith(
        "training: 48 samples to train on, 10 held out, 2 x batch 4, fsdp (ours, gloo), cpu"
    )
    assert first.printed[1].split() == ["step", "loss", "accuracy", "samples/s"]
    rows = [line.split() for line in first.printed[2:]]
    assert [(row[0], len(row)) for row in rows] == [("2", 3), ("4", 4)], "scores only where due"
    assert len({len(line) for line in first.printed[1:]}) == 1, "columns stand in line"


def test_events_have_what_the_table_has_and_more(tmp_path: Path) -> None:
    result = train(tmp_path, {"steps": 4, "save_every": 2, "warmup": 2, "lr": 0.1})
    kinds = [event["event"] for event in result.events]
    assert kinds == ["start", "report", "report", "save", "report", "report", "save", "end"]
    assert result.events[0]["batch_size"] == 4
    reports = [event for event in result.events if event["event"] == "report"]
    assert [event["lr"] for event in reports] == [0.05, 0.1, 0.1, 0.1]
    assert reports[0]["step_seconds"] > 0
    assert {"step", "epoch", "loss", "accuracy", "per_second", "time"} <= reports[0].keys()


def test_events_are_in_the_runs_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAB_RUN_DIR", str(tmp_path))
    train(tmp_path, {"events": None})
    lines = (tmp_path / "training.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["event"] == "end"


def test_losses_are_means_over_all_items_of_the_line(tmp_path: Path) -> None:
    """A step of which more counts weighs more, in what is said."""
    inputs, targets = dataset().tensors
    targets[::3] = -100
    job = Job(data=TensorDataset(inputs, targets), trainer={"count": count_of})
    given = {"steps": 4, "lr": 0.1}
    singly = train(tmp_path / "1", given, job)
    together = train(tmp_path / "4", {**given, "report_every": 0}, job)
    order, position, counts = Order(48, 4, seed=42), Position(), []
    for _ in range(4):
        counts.append(int((targets[order.step(position)] != -100).sum()))
        position = order.after(position)
    assert len(set(counts)) > 1, "else a mean of means would do"
    weighed = sum(loss * n for loss, n in zip(singly.losses, counts, strict=True)) / sum(counts)
    assert together.losses == [pytest.approx(weighed)]
    assert weighed != pytest.approx(sum(singly.losses) / 4)


def count_of(batch: Any) -> Tensor:
    counts: Tensor = (batch[1] != -100).sum()
    return counts


def test_what_json_has_no_number_for_is_null(tmp_path: Path) -> None:
    """Programs that read events stop at NaN, which is no JSON."""
    result = train(tmp_path, {"steps": 1}, Job(trainer={"evaluate": lambda *_: [math.nan]}))
    assert result.events[1]["accuracy"] is None
    text = (tmp_path / "events.jsonl").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert "nan" in result.printed[-1]


def test_a_stop_that_any_rank_was_asked_for_saves_and_ends_all(
    ranks: RankPool, tmp_path: Path
) -> None:
    options = {"parallel": "ddp", "steps": 9, "report_every": 3, "save_every": 9}
    results = ranks.run(2, train, tmp_path, options, Job(stop=4))
    assert [result.error for result in results] == ["", ""]
    assert [(event["event"], event["step"]) for event in results[0].events] == [
        *(("start", 0), ("report", 3), ("report", 6), ("save", 6), ("end", 6))
    ]
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000006"]


def test_no_control_codes_when_piped() -> None:
    done = subprocess.run(MLP, env=ENVIRONMENT, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout
    assert b"\r" not in done.stdout
    assert done.stderr == b""


def test_a_bar_on_a_terminal() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(MLP, env=ENVIRONMENT, stdout=theirs, stderr=theirs)
    os.close(theirs)
    printed = b""
    try:
        while piece := os.read(ours, 65536):
            printed += piece
    except OSError:  # the end of a terminal on Linux
        pass
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert b"3/3" in printed
    text = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", printed).decode()
    assert re.search(r"3 +\d\.\d{4} +\d\.\d{4} +\d+", text), "the table is there as well"


def test_tensorboard_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    result = train(tmp_path, {"tensorboard": tmp_path / "board"})
    assert result.error.startswith("UsageError: --tensorboard needs TensorBoard: pip install '")


def test_tensorboard_gets_what_the_table_has(ranks: RankPool, tmp_path: Path) -> None:
    options = {"tensorboard": tmp_path / "board", "steps": 2, "parallel": "ddp"}
    first, second = ranks.run(2, train, tmp_path, options)
    assert (first.error, second.error) == ("", "")
    (file,) = (tmp_path / "board").iterdir()  # rank 0's alone
    written = EventAccumulator(str(file)).Reload()
    assert written.Tags()["scalars"] == ["loss", "accuracy", "lr", "samples/s"]
    for name in ("loss", "accuracy", "lr"):
        scalars = [(scalar.step, scalar.value) for scalar in written.Scalars(name)]
        told = [(e["step"], e[name]) for e in first.events if e["event"] == "report"]
        assert scalars == [(step, pytest.approx(value)) for step, value in told]


def test_measures_communication_and_utilisation(ranks: RankPool, tmp_path: Path) -> None:
    options = {"parallel": "ddp", "measure": True, "profile": tmp_path / "trace", "steps": 8}
    result = ranks.run(2, train, tmp_path, options)[0]
    assert result.error == ""
    assert result.printed[-1].startswith("measured: ")
    end = result.events[-1]
    assert end["communication"] > 0
    assert end["utilisation"] > 0
    for rank in range(2):
        trace = json.loads((tmp_path / "trace" / f"rank{rank}.json").read_text())
        names = {event.get("name") for event in trace["traceEvents"]}
        assert "gloo:all_reduce" in names


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_short_training_can_be_measured(tmp_path: Path, steps: int) -> None:
    result = train(tmp_path, {"measure": True, "steps": steps})
    assert (result.error, result.events[-1]["event"]) == ("", "end")


def test_measuring_changes_no_number(tmp_path: Path) -> None:
    plain, measured = (
        train(tmp_path / str(wanted), {"measure": wanted}, Job({"dropout": 0.4}))
        for wanted in (False, True)
    )
    assert measured.losses == plain.losses


def test_flops_are_counted_by_the_shapes() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    batch = (torch.randn(5, 8), torch.zeros(5, dtype=torch.long))
    products = 2 * 5 * (8 * 16 + 16 * 4)
    # Backward has two products for each of forward's, less that for the first layer's input.
    assert flops_of(model, classification_loss, batch) == 3 * products - 2 * 5 * 8 * 16
    assert next(model.parameters()).device.type == "cpu"


def test_a_loss_that_looks_at_values_is_not_counted() -> None:
    def looks(model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = model(batch).sum()
        return loss * float(loss.detach())

    assert flops_of(nn.Linear(2, 2), looks, torch.ones(1, 2)) is None


def test_covered_counts_no_time_twice() -> None:
    assert covered([(0, 2), (1, 3), (5, 6), (5.2, 5.8)]) == 4
    assert covered([]) == 0


def test_a_processor_reaches_something() -> None:
    assert reachable_flops(torch.device("cpu"), torch.float32, seconds=0) > 1e6
