"""Overlap: a hook sends each gradient while backward computes the next; what that gains.

Exercise
    Average the gradients after backward has ended. Then write a hook that sends each as soon as it
    is there, and compare: results, the order of events, and the time of a step.

Theory
    Backward makes the last layer's gradient first, and the wire is idle meanwhile. PyTorch calls
    `parameter.register_post_accumulate_grad_hook(hook)` as soon as a gradient is in `grad`:

        def hook(parameter):
            pending.append(dist.all_reduce(parameter.grad, async_op=True))   # and go on computing

    With C seconds of backward and W seconds on the wire, a step takes C + W without overlap and at
    best max(C, W) with it: the gain is at most half, where C = W. What can never be hidden is the
    message of the first layer, whose gradient comes last.

    The results are the same, bit by bit: the same messages, only earlier. All ranks must send in
    one order, for messages match by the order of the calls.

    Here layers pause instead of computing (2/3 of it in backward), for C that equals W and leaves
    the cores free, as an accelerator does. Where ranks share cores with their own communication,
    overlap gains little: they take them from each other. `lab bench ddp --only overlap` shows it.

Read
    lab/parallel/reducer.py, `_gradient_ready`: the same with buckets, see the lesson buckets.
"""

import sys
from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lab.bench.workers.models import HIDDEN_LAYERS, Pause, mlp, samples
from lab.lessons.notebook import Notebook, main
from lab.lessons.vectors import apart, gradients
from lab.parallel import DistributedDataParallel

WIDTH = 192
"""Of the layers: 2.7 MB of parameters."""
SAMPLES = 1
ROUNDS = 5

Data = tuple[Tensor, Tensor]


class Averaging:
    """Averages the gradients of a model, and remembers when what happened."""

    def __init__(self, model: nn.Module, *, at_once: bool) -> None:
        self.model = model
        self.at_once = at_once
        self.ready: list[Tensor] = []
        """Parameters in the order in which their gradients came."""
        self.pending: list[dist.Work | None] = []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._hook)

    def _hook(self, parameter: Tensor) -> None:
        self.ready.append(parameter)
        if self.at_once:
            self.send([parameter])

    def send(self, parameters: Iterable[Tensor]) -> None:
        """Begin to sum their gradients over the ranks."""
        self.pending += [dist.all_reduce(p.grad, async_op=True) for p in parameters]

    def finish(self) -> None:
        """After backward."""
        if not self.at_once:
            self.send(self.ready)
        for work in self.pending:
            assert work is not None
            work.wait()
        for parameter in self.model.parameters():
            assert parameter.grad is not None
            parameter.grad /= dist.get_world_size()
        self.ready, self.pending = [], []

    def step(self, data: Data) -> None:
        """Forward, backward, averages."""
        backward(self.model, data)
        self.finish()


def exercise(notebook: Notebook) -> None:
    """Results and order without pauses, then time with them."""
    world = notebook.world
    after, hooks = (Averaging(mlp(WIDTH).to(world.device), at_once=how) for how in (False, True))
    torch.manual_seed(world.rank)
    data = samples(SAMPLES, WIDTH, world.device)
    for averaging in (after, hooks):
        backward(averaging.model, data)
    count = len(list(hooks.model.parameters()))
    notebook.expect("messages that left during backward, sent after", len(after.pending), 0)
    notebook.expect("messages that left during backward, by hook", len(hooks.pending), count)
    first_layer = next(part for part in hooks.model.modules() if isinstance(part, nn.Linear))
    hidden = min(
        n for n, p in enumerate(hooks.ready) if p is first_layer.weight or p is first_layer.bias
    )
    notebook.expect("of these before the first layer's gradients", hidden, count - 2)
    for averaging in (after, hooks):
        averaging.finish()
    difference = apart(gradients(hooks.model), gradients(after.model))
    notebook.expect("difference of the two ways' gradients", difference, 0.0)

    def communicate() -> None:
        after.send(after.model.parameters())
        after.finish()

    wire = notebook.seconds({"wire": communicate}, ROUNDS)["wire"]
    wire = notebook.gather(wire)[0]  # pauses must be as long on every rank
    pause = Pause(wire * 3 / 2 / HIDDEN_LAYERS)  # 2/3 of it are in backward
    late = Averaging(mlp(WIDTH, pause).to(world.device), at_once=False)
    early = Averaging(mlp(WIDTH, pause).to(world.device), at_once=True)
    alone = mlp(WIDTH, pause).to(world.device)
    ours = DistributedDataParallel(mlp(WIDTH, pause).to(world.device))
    steps = {
        "no averages": lambda: backward(alone, data),
        "sent after backward": lambda: late.step(data),
        "sent by hooks": lambda: early.step(data),
        "DistributedDataParallel": lambda: backward(ours, data),
    }
    times = notebook.seconds(steps, ROUNDS)
    notebook.say(f"the wire takes {1e3 * wire:.1f} ms, and so do the pauses of backward")
    notebook.table(("step", "ms"), [(name, 1e3 * seconds) for name, seconds in times.items()])
    together = times["sent after backward"]
    for name in ("sent by hooks", "DistributedDataParallel"):
        gain = 1 - times[name] / together
        most = min(wire, 2 / 3 * times["no averages"]) / together
        notebook.show(f"gain, {name}", f"{gain:.0%}", f"about {most:.0%}, if all hides")


def backward(model: nn.Module, data: Data) -> None:
    """A step's computation."""
    model.zero_grad()
    inputs, targets = data
    cross_entropy(model(inputs), targets).backward()


if __name__ == "__main__":
    sys.exit(main(exercise))
