"""Fine-tuning, and that the lesson would see weights that were not loaded, frozen or broadcast."""

from functools import partial
from pathlib import Path
from typing import Any

import torch

from lab.lessons.exercises.fine_tuning import learn
from lab.parallel import DistributedDataParallel
from lab.training.checkpoints import Checkpoints
from tests.lessons.doing import failures
from tests.ranks import RankPool


class NotLoading(Checkpoints):
    """Says that it did."""

    def load(self, *_: Any) -> dict[str, Any]:
        return {}


def learn_and_touch(model: Any, *arguments: Any) -> None:
    """Trains, and moves a weight of the body, frozen or not."""
    learn(model, *arguments)
    with torch.no_grad():
        model.module.body[0].weight += 1e-3


def test_theory_holds(ranks: RankPool, tmp_path: Path) -> None:
    assert failures(ranks, 2, "fine_tuning", checkpoint_folder=partial(Path, tmp_path)) == []


def test_weights_that_were_not_loaded_are_seen(ranks: RankPool, tmp_path: Path) -> None:
    folder = partial(Path, tmp_path)
    failed = failures(ranks, 2, "fine_tuning", checkpoint_folder=folder, Checkpoints=NotLoading)
    assert "saved and loaded weights differ by" in failed
    assert "a network with another head" in failed


def test_a_body_that_changed_is_seen(ranks: RankPool, tmp_path: Path) -> None:
    folder = partial(Path, tmp_path)
    failed = failures(ranks, 2, "fine_tuning", checkpoint_folder=folder, learn=learn_and_touch)
    assert "fine-tuning changed the body by" in failed


def test_heads_that_were_not_broadcast_are_seen(ranks: RankPool, tmp_path: Path) -> None:
    folder = partial(Path, tmp_path)
    unequal = partial(DistributedDataParallel, init_sync=False)
    failed = failures(
        ranks, 2, "fine_tuning", checkpoint_folder=folder, DistributedDataParallel=unequal
    )
    assert failed == ["the ranks' heads differ by"]
