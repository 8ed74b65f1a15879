"""What classifiers are trained and judged by. A batch is (inputs, classes [batch] int64)."""

from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def classification_loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The cross-entropy, summed over a batch's samples."""
    inputs, classes = batch
    return cross_entropy(model(inputs), classes, reduction="sum")


def correct(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[float]:
    """How many samples of a batch the model gets right."""
    inputs, classes = batch
    return (float((model(inputs).argmax(dim=1) == classes).sum()),)
