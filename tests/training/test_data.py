"""The Wine data as the jobs see it."""

import torch

from lab.training.data import wine_split


def test_every_sample_is_in_one_part_and_the_classes_keep_their_proportions() -> None:
    split = wine_split()
    assert (len(split.train), len(split.held_out)) == (142, 36)
    train, held_out = (part.tensors[1].bincount() for part in split)
    assert (train + held_out).tolist() == [59, 71, 48]
    assert held_out.tolist() == [12, 14, 10]


def test_standardised_on_the_training_part_only() -> None:
    split = wine_split()
    features = split.train.tensors[0]
    assert features.dtype == torch.float32
    torch.testing.assert_close(features.mean(dim=0), torch.zeros(13), atol=1e-6, rtol=0)
    torch.testing.assert_close(features.std(dim=0, correction=0), torch.ones(13))
    assert split.held_out.tensors[0].mean(dim=0).abs().max() > 0.01


def test_the_same_every_time() -> None:
    first, second = wine_split(), wine_split()
    assert torch.equal(first.train.tensors[0], second.train.tensors[0])
    assert not torch.equal(first.train.tensors[1], wine_split(seed=1).train.tensors[1])
