"""Fine-tuning from a checkpoint: what is loaded, what is new, what is frozen.

Exercise
    Train a network to tell ten digits apart, with DDP, and save it. Then teach it odd from even by
    32 samples: its body as it was saved, a new head, and only the head trained. Compare with the
    same training from nothing.

Theory
    The order matters, for each act relies on the one before:

        model = Network(classes=10)             # as it was saved: another one is refused
        Checkpoints(folder).load(model)         # on all ranks; weights alone
        model.head = nn.Linear(WIDTH, 2)        # the new task's
        model.body.requires_grad_(False)        # frozen
        model = DistributedDataParallel(model)  # broadcasts rank 0's: one head on all ranks
        optimizer = Adam(model.module.head.parameters())

    - A checkpoint holds tensors by name, no ranks and no wrappers: what DDP saved, FSDP loads.
    - Adam's states belong to the old weights and the old task; they stay in the file.
    - A frozen body has no gradients: none is computed, kept or sent. Freeze before wrapping, as DDP
      lays its buckets out at construction and waits for all that is in them.
    - A body with BatchNorm or dropout must be in `eval()` as well, or it changes while frozen.
    - Few samples fit many weights too well: from nothing, the loss on other samples rises while
      that of the samples falls. A body that knows digits has less to get wrong.
    - To train the body too, once the head has settled: a group of its own, with a smaller rate.

Read
    lab/training/checkpoints; docs/checkpoints.md.
"""

import sys

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lab.errors import LabError
from lab.lessons.notebook import Notebook, main
from lab.lessons.vectors import apart, parameters
from lab.parallel import DistributedDataParallel, FullyShardedDataParallel
from lab.parallel.buckets import Bucket
from lab.parallel.comm_hooks import Pending, allreduce_hook
from lab.training.checkpoints import Checkpoints
from lab.training.checkpoints.files import checkpoint_folder
from lab.training.world import World

PIXELS, WIDTH = 64, 64
MANY, FEW = 1000, 32
"""Samples of the first task, and of the second; the other 765 are held out."""
PRETRAINING, FINE_TUNING = 50, 40
"""Steps, each with all samples of the task."""


class Network(nn.Module):
    """A body that finds features, a head that names classes: [batch, 64] to [batch, classes]."""

    def __init__(self, classes: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(
            nn.Linear(PIXELS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()
        )
        self.head = nn.Linear(WIDTH, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.body(images))
        return logits


def exercise(notebook: Notebook) -> None:
    """Pretrain and save; load, change the head, freeze and train; compare."""
    world, rank = notebook.world, notebook.world.rank
    images, digits = samples(world)
    few, held_out = slice(MANY, MANY + FEW), slice(MANY + FEW, None)
    odd = digits % 2

    saved = Network(classes=10, seed=0).to(world.device)
    replica = DistributedDataParallel(saved)
    optimizer = torch.optim.Adam(replica.parameters(), lr=0.01)
    learn(replica, optimizer, images[:MANY], digits[:MANY], PRETRAINING, world)
    checkpoints = Checkpoints(checkpoint_folder() / "fine-tuning")
    checkpoints.save(PRETRAINING, replica, optimizer, {})

    model = load(checkpoints, notebook, saved)
    torch.manual_seed(rank)  # so that wrapping has something to make equal
    model.head = nn.Linear(WIDTH, 2, device=world.device)
    model.body.requires_grad_(False)
    tuned = DistributedDataParallel(model)
    sent = count_bytes(tuned)
    optimizer = torch.optim.Adam(model.head.parameters(), lr=0.01)
    learn(tuned, optimizer, images[few], odd[few], FINE_TUNING, world)
    head_bytes = sum(parameter.nbytes for parameter in model.head.parameters())
    notebook.expect("bytes averaged in a step: the head's", sum(sent) / FINE_TUNING, head_bytes)
    change = apart(parameters(model.body), parameters(saved.body))
    notebook.expect("fine-tuning changed the body by", change, 0.0)
    everybodys = notebook.gather(parameters(model.head).cpu())
    difference = max(apart(head, everybodys[0]) for head in everybodys)
    notebook.expect("the ranks' heads differ by", difference, 0.0)

    nothing = Network(classes=2, seed=1).to(world.device)
    replica = DistributedDataParallel(nothing)
    optimizer = torch.optim.Adam(replica.parameters(), lr=0.01)
    learn(replica, optimizer, images[few], odd[few], FINE_TUNING, world)
    losses = [
        [loss(network, images[part], odd[part]) for part in (few, held_out)]
        for network in (model, nothing)
    ]
    names = ("fine-tuned", "from nothing")
    rows = [(name, *both) for name, both in zip(names, losses, strict=True)]
    notebook.table(("loss", f"{FEW} samples", "held out"), rows)
    tuned_loss, other_loss = (both[1] for both in losses)
    words = f"{tuned_loss:.2g} and {other_loss:.2g}"
    what = "held-out loss, fine-tuned and from nothing"
    notebook.judge(what, tuned_loss < other_loss, words, "less")


def load(checkpoints: Checkpoints, notebook: Notebook, saved: Network) -> Network:
    """Into the same network, into FSDP, and into another network, which is refused."""
    device = notebook.world.device
    model = Network(classes=10, seed=1).to(device)
    notebook.expect("there is a checkpoint", checkpoints.load(model) is not None, True)
    difference = apart(parameters(model), parameters(saved))
    notebook.expect("saved and loaded weights differ by", difference, 0.0)
    sharded = FullyShardedDataParallel(Network(classes=10, seed=1).to(device))
    checkpoints.load(sharded)
    images, _ = samples(notebook.world)
    with torch.no_grad():
        change = apart(sharded(images), saved(images))
    notebook.expect_at_most("outputs of FSDP, loaded, differ by", change, 1e-5)
    try:
        checkpoints.load(Network(classes=2, seed=1).to(device))
        refused = "loaded"
    except LabError:
        refused = "refused"
    notebook.expect("a network with another head", refused, "refused")
    return model


def samples(world: World) -> tuple[Tensor, Tensor]:
    """1797 images of 8 x 8 pixels in [0, 1], flat, and the digits that they are."""
    data = load_digits()
    images = torch.as_tensor(data.images).flatten(1).float() / 16
    return images.to(world.device), torch.as_tensor(data.target).to(world.device)


def learn(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    classes: Tensor,
    steps: int,
    world: World,
) -> None:
    """Each rank takes its part of the samples."""
    mine = slice(world.rank, None, world.size)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model(images[mine]), classes[mine]).backward()
        optimizer.step()


@torch.no_grad()
def loss(model: nn.Module, images: Tensor, classes: Tensor) -> float:
    """The mean over samples."""
    return cross_entropy(model(images), classes).item()


def count_bytes(model: DistributedDataParallel) -> list[int]:
    """Of each bucket of gradients that is averaged from now on."""
    sent: list[int] = []

    def counting(state: None, bucket: Bucket) -> Pending:
        sent.append(bucket.buffer().nbytes)
        return allreduce_hook(state, bucket)

    model.register_comm_hook(None, counting)
    return sent


if __name__ == "__main__":
    sys.exit(main(exercise))
