"""What the ranks of a proof run: `lab prove` starts it, and so does any launcher.

    lab prove                                                # on the topology's ranks
    torchrun --nproc-per-node 2 -m lab.prove.worker          # by PyTorch's launcher

All ranks train together and send their traces to rank 0. It trains the same again by itself,
compares, writes the report as JSON and ends with exit code 1 where they are not equal.
"""

import math
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from lab.errors import EXIT_FAILURE, LabError
from lab.parallel import manual_all_reduce_matches_single_process
from lab.prove.compare import compare_ranks, compare_steps
from lab.prove.report import Report, Setting
from lab.prove.trace import Recipe, Trace, batches, run_distributed, run_one_process
from lab.training.arguments import ArgumentParser, count, positive_float, positive_int
from lab.training.checkpoint import atomic_file
from lab.training.wine import WineClassifier
from lab.training.world import BACKENDS, World, join_world

PROGRAM = "lab.prove.worker"
REPORT = "prove.json"
"""The report's name in the run directory."""


def prove(recipe: Recipe, world: World) -> Report | None:
    """The whole proof. A collective: every rank calls it; the report is for rank 0 alone."""
    trace = run_distributed(recipe, world)
    batch_difference = compare_one_batch(recipe, world)
    mine = (os.environ.get("LAB_NODE") or socket.gethostname(), trace)
    gathered: list[tuple[str, Trace]] | None = [mine] * world.size if world.is_main else None
    dist.gather_object(mine, gathered, dst=0)
    if gathered is None:
        return None
    nodes, ranks = zip(*gathered, strict=True)
    one = run_one_process(recipe, world.size, world.device)
    return Report(
        setting=Setting(
            topology=os.environ.get("LAB_TOPOLOGY", ""),
            nodes=len(set(nodes)),
            world_size=world.size,
            torch=torch.__version__,
            backend=world.backend,
            parallel=recipe.parallel,
            impl=recipe.impl,
            all_reduce=recipe.all_reduce,
            bucket_cap_mb=recipe.bucket_cap_mb,
            find_unused_parameters=recipe.find_unused_parameters,
            static_graph=recipe.static_graph,
            optimizer=recipe.optimizer,
            learning_rate=recipe.learning_rate,
            batch_size=recipe.batch_size,
            seed=recipe.seed,
        ),
        steps=compare_steps(ranks, one),
        ranks=compare_ranks(nodes, ranks, one),
        batch_difference=batch_difference,
    )


def compare_one_batch(recipe: Recipe, world: World) -> float:
    """The first step's averaged gradients against those of the concatenated batch."""
    torch.manual_seed(recipe.seed)
    model = WineClassifier().to(world.device)
    _, inputs, targets = next(batches(recipe, world.rank, world.size))
    return manual_all_reduce_matches_single_process(
        model,
        cross_entropy,
        inputs.to(world.device),
        targets.to(world.device),
        tolerance=math.inf,  # the report judges
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Prove as the command line says.

    Returns:
        The exit code: 0; 1 on rank 0 where the ranks are not equal to one process; 2 for usage.
    """
    default = Recipe()
    parser = ArgumentParser(PROGRAM, description="Compare N ranks with one process, step by step.")
    parser.add_argument("--steps", type=positive_int, default=default.steps)
    parser.add_argument("--batch-size", type=positive_int, default=default.batch_size)
    parser.add_argument("--optimizer", choices=("adam", "sgd"), default=default.optimizer)
    parser.add_argument("--learning-rate", type=positive_float, default=default.learning_rate)
    parser.add_argument("--seed", type=count, default=default.seed)
    parser.add_argument("--parallel", choices=("ddp", "zero1"), default=default.parallel)
    parser.add_argument("--impl", choices=("ours", "torch", "minimal"), default=default.impl)
    parser.add_argument("--all-reduce", choices=("flat", "ordered"), default=default.all_reduce)
    parser.add_argument("--bucket-cap-mb", type=float, default=default.bucket_cap_mb)
    parser.add_argument("--find-unused-parameters", action="store_true")
    parser.add_argument("--static-graph", action="store_true")
    parser.add_argument("--backend", choices=BACKENDS, default="auto")
    parser.add_argument(
        "--timeout", type=positive_float, default=120.0, help="seconds, of each collective"
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path(os.environ.get("LAB_RUN_DIR") or ".") / REPORT,
        help="where rank 0 writes the report (the run directory, else here)",
    )
    parser.add_argument("--quiet", action="store_true", help="leave the verdict to the report")
    options = parser.parse_args(argv)
    try:
        recipe = Recipe(**{name: getattr(options, name) for name in asdict(default)})
    except ValueError as error:
        parser.error(str(error))
    try:
        # Without a short time-out, a rank that skips a collective makes the others wait 30 minutes.
        timeout = timedelta(seconds=options.timeout)
        with join_world(options.backend, group_of_one=True, timeout=timeout) as world:
            report = prove(recipe, world)
    except LabError as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return error.exit_code
    if report is None:
        return 0
    with atomic_file(options.out) as file:
        file.write(report.dumps().encode())
    if not options.quiet:
        print(report.verdict, file=sys.stderr, flush=True)
    return 0 if report.ok else EXIT_FAILURE


if __name__ == "__main__":
    sys.exit(main())
