"""World size 4: what the ranks compute is what one process computes, throughout.

Exercise
    Train the same model twice, at once: under DDP on all ranks, each with its part of every batch,
    and in one process with the whole batch. Print the differences of loss, gradients and parameters
    after every step. They must stay below 1e-3 all the way, not only at the end.

Theory
    The loss is a mean, and N equal parts of a batch have means of equal weight, so the mean of the
    ranks' gradients is the gradient of the whole batch. What remains is rounding: floating-point
    addition is not associative, and one matrix product over 64 samples sums in another order than
    4 products over 16 and an all-reduce. Each sum is wrong by about 1e-7 of its value (float32 has
    24 bits), and steps add such errors up, so a difference near 1e-3 is not rounding but a fault:
    unequal parts, a sum without division, different initial weights, a dropout that differs.

    Among the ranks there is no rounding: all receive the same bits from the all-reduce and do the
    same with them. Ranks that differ in one bit no longer train one model.

Read
    lab/prove/trace.py does the same with every method of lab.parallel: `lab prove --parallel all`.
"""

import sys

import torch
from torch.nn.functional import cross_entropy

from lab.lessons.notebook import Notebook, main
from lab.lessons.vectors import apart, gradients, parameters
from lab.parallel import DistributedDataParallel
from lab.training.data import wine_split
from lab.training.wine import WineClassifier

STEPS, SHOWN = 20, (1, 2, 5, 10, 20)
SAMPLES = 16
"""Of a rank in a step."""
TOLERANCE = 1e-3


def exercise(notebook: Notebook) -> None:
    """Both trainings side by side."""
    world = notebook.world
    inputs, targets = (tensor.to(world.device) for tensor in wine_split().train.tensors)

    torch.manual_seed(0)
    alone = WineClassifier().to(world.device)
    torch.manual_seed(world.rank)  # other weights on each rank: DDP makes them rank 0's
    together = DistributedDataParallel(WineClassifier().to(world.device))
    optimizers = [torch.optim.Adam(model.parameters()) for model in (alone, together)]

    draw = torch.Generator().manual_seed(0)  # the same on every rank
    worst = {"loss": 0.0, "gradients": 0.0, "parameters": 0.0}
    rows = []
    for step in range(1, STEPS + 1):
        batch = torch.randint(len(inputs), (SAMPLES * world.size,), generator=draw)
        mine = batch[world.rank :: world.size]
        losses = []
        for model, part in ((alone, batch), (together, mine)):
            model.zero_grad()
            loss = cross_entropy(model(inputs[part]), targets[part])
            loss.backward()
            losses.append(loss.item())
        whole, mean = losses[0], world.sum(losses[1])[0] / world.size
        differences = {"loss": abs(whole - mean)}
        differences["gradients"] = apart(gradients(alone), gradients(together))
        for optimizer in optimizers:
            optimizer.step()
        differences["parameters"] = apart(parameters(alone), parameters(together))
        worst = {name: max(worst[name], value) for name, value in differences.items()}
        if step in SHOWN:
            rows.append((step, f"{whole:.6f}", f"{mean:.6f}", *differences.values()))

    notebook.table(("step", "1 process", f"{world.size} ranks", *(f"|{n}|" for n in worst)), rows)
    for name, value in worst.items():
        notebook.expect_at_most(f"{name}, largest difference of {STEPS} steps", value, TOLERANCE)
    everybodys = notebook.gather(parameters(together).cpu().numpy().tobytes())
    equal = sum(other == everybodys[0] for other in everybodys)
    notebook.expect("ranks with the same bits as rank 0", equal, world.size)


if __name__ == "__main__":
    sys.exit(main(exercise))
