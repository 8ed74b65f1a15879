"""The job on a spiral: as deep as wanted, and it learns."""

from pathlib import Path

import torch

from lab.training.mlp import Mlp, main, spiral
from tests.ranks import RankPool
from tests.training.training_jobs import last_accuracy


def learn(folder: Path) -> int:
    events = ["--events", str(folder / "events.jsonl"), "--save-every", "0"]
    return main(["--lr", "0.01", "--epochs", "4", *events])


def test_two_ranks_learn_the_spiral(ranks: RankPool, tmp_path: Path) -> None:
    assert ranks.run(2, learn, tmp_path) == [0, 0]
    assert last_accuracy(tmp_path / "events.jsonl") > 0.9


def test_as_many_layers_as_wanted() -> None:
    for layers in (1, 2, 7):
        linear = [module for module in Mlp(layers) if isinstance(module, torch.nn.Linear)]
        assert len(linear) == layers
        assert Mlp(layers)(torch.zeros(5, 2)).shape == (5, 3)


def test_the_spiral_is_the_same_every_time() -> None:
    points, arms = spiral(9, 1).tensors
    assert torch.equal(points, spiral(9, 1).tensors[0])
    assert not torch.equal(points, spiral(9, 2).tensors[0])
    assert arms.bincount().tolist() == [3, 3, 3]
