"""The job on handwritten digits: batch normalisation and augmentation."""

from pathlib import Path

import pytest
import torch

from lab.training.digits import digits_split, main
from tests.ranks import RankPool
from tests.training.training_jobs import last_accuracy


def learn(folder: Path, *arguments: str) -> int:
    events = ["--events", str(folder / "events.jsonl"), "--save-every", "0"]
    return main(["--epochs", "2", *arguments, *events])


@pytest.mark.parametrize("more", [[], ["--sync-batchnorm"]])
def test_two_ranks_learn_the_digits(ranks: RankPool, tmp_path: Path, more: list[str]) -> None:
    assert ranks.run(2, learn, tmp_path, *more) == [0, 0]
    assert last_accuracy(tmp_path / "events.jsonl") > 0.8


def test_images_are_shifted_only_to_train() -> None:
    data, held_out = digits_split()
    assert (len(data), len(held_out)) == (1437, 360)
    image, number = held_out[0]
    assert image.shape == (1, 8, 8)
    assert float(image.min()) >= 0
    assert float(image.max()) <= 1
    assert number.dtype == torch.int64
    assert torch.equal(image, held_out[0][0])
    shifted = [data[0][0] for _ in range(20)]
    assert any(not torch.equal(shifted[0], other) for other in shifted[1:])


def test_the_parts_keep_the_classes_proportions() -> None:
    data, held_out = digits_split()
    counts = [
        torch.stack([part[n][1] for n in range(len(part))]).bincount() for part in (data, held_out)
    ]
    assert int((counts[0] - 4 * counts[1]).abs().max()) <= 4
