"""The Wine data: 178 wines from three growers, 13 chemical measurements each.

Forina et al., UCI Machine Learning Repository, https://doi.org/10.24432/C5PC7J. It is part of
scikit-learn, so nothing is downloaded.
"""

from typing import NamedTuple

import torch
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from torch.utils.data import TensorDataset

FEATURES = 13
CLASSES = 3
Sample = tuple[torch.Tensor, ...]
"""Features [13] float32 and class [] int64."""


class Split(NamedTuple):
    """The two parts of a data set, of `Sample`s."""

    train: TensorDataset
    held_out: TensorDataset


def wine_split(held_out: float = 0.2, seed: int = 42) -> Split:
    """Load Wine, hold a part out, standardise: 142 samples to train on and 36 held out.

    The same on every rank: it depends on nothing but the arguments. Stratified, because 36 drawn
    freely from three classes can miss the proportions by a lot. Mean and deviation come from the
    training part only, since the held-out part stands for data that nobody has seen yet.
    """
    features, classes = load_wine(return_X_y=True)
    train_x, held_x, train_y, held_y = train_test_split(
        features, classes, test_size=held_out, random_state=seed, stratify=classes
    )
    mean, deviation = train_x.mean(axis=0), train_x.std(axis=0)

    def dataset(x: object, y: object) -> TensorDataset:
        standardised = (torch.as_tensor(x) - torch.as_tensor(mean)) / torch.as_tensor(deviation)
        return TensorDataset(standardised.float(), torch.as_tensor(y).long())

    return Split(train=dataset(train_x, train_y), held_out=dataset(held_x, held_y))
