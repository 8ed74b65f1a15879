"""What the ranks of a proof run: `lab prove` starts it, and so does any launcher.

    lab prove                                                # on the topology's ranks
    torchrun --nproc-per-node 2 -m lab.prove.worker          # by PyTorch's launcher

All ranks train together and send their traces to rank 0. It trains the same again by itself,
compares, writes the report as JSON and ends with exit code 1 where they are not equal.
"""

import argparse
import math
import os
import socket
import sys
from collections.abc import Sequence
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from lab.errors import EXIT_FAILURE, LabError, UsageError
from lab.parallel import manual_all_reduce_matches_single_process
from lab.prove.compare import compare_ranks, compare_steps
from lab.prove.matrix import Matrix, recipes
from lab.prove.measure import measure
from lab.prove.recipe import Recipe, choices
from lab.prove.report import Place, Report
from lab.prove.round_trip import round_trip
from lab.prove.trace import Trace, batches, run_distributed, run_one_process
from lab.training.arguments import ArgumentParser, count, positive_float, positive_int
from lab.training.checkpoints.files import atomic_file
from lab.training.wine import WineClassifier
from lab.training.world import BACKENDS, World, join_world

PROGRAM = "lab.prove.worker"
REPORT = "prove.json"
"""The report's name in the run directory."""
KINDS = {
    "steps": positive_int,
    "batch_size": positive_int,
    "accumulate": positive_int,
    "learning_rate": positive_float,
    "seed": count,
    "bucket_cap_mb": float,
}
"""Of the options of Recipe that are no words."""


def prove(recipe: Recipe, world: World) -> Report | None:
    """The whole proof. A collective: every rank calls it; the report is for rank 0 alone."""
    trace = run_distributed(recipe, world)
    batch_difference = compare_one_batch(recipe, world)
    trip = round_trip(recipe, world)
    wire, memory = measure(recipe, world)
    mine = (os.environ.get("LAB_NODE") or socket.gethostname(), trace)
    gathered: list[tuple[str, Trace]] | None = [mine] * world.size if world.is_main else None
    dist.gather_object(mine, gathered, dst=0)
    if gathered is None:
        return None
    nodes, ranks = zip(*gathered, strict=True)
    one = run_one_process(recipe.training, world.size, world.device)
    return Report(
        place=Place(
            topology=os.environ.get("LAB_TOPOLOGY", ""),
            nodes=len(set(nodes)),
            world_size=world.size,
            torch=torch.__version__,
            backend=world.backend,
        ),
        recipe=recipe,
        steps=compare_steps(ranks, one),
        ranks=compare_ranks(nodes, ranks, one),
        batch_difference=batch_difference,
        round_trip=trip,
        wire=wire,
        memory=memory,
    )


def prove_all(base: Recipe, world: World) -> Matrix | None:
    """One proof after another, by all methods and options. A collective, as `prove`."""
    reports = []
    for recipe in recipes(base, world.size):
        report = prove(recipe, world)
        if report is not None:
            reports.append(report)
            print(f"{recipe.title}: {report.outcome}", file=sys.stderr, flush=True)
    return Matrix(tuple(reports)) if world.is_main else None


def compare_one_batch(recipe: Recipe, world: World) -> float:
    """The first microbatch's averaged gradients against those of the concatenated batch."""
    torch.manual_seed(recipe.seed)
    model = WineClassifier().to(world.device)
    _, inputs, targets = next(batches(recipe, world.rank, world.size))[0]
    return manual_all_reduce_matches_single_process(
        model,
        cross_entropy,
        inputs.to(world.device),
        targets.to(world.device),
        tolerance=math.inf,  # the report judges
    )


def parse(argv: Sequence[str] | None) -> tuple[Recipe, argparse.Namespace]:
    """Read the command line; a wrong one ends the process with one line and exit code 2."""
    parser = ArgumentParser(PROGRAM, description="Compare N ranks with one process, step by step.")
    for field in fields(Recipe):  # its docstrings explain each
        kind: dict[str, Any] = {"type": KINDS.get(field.name)}
        if isinstance(field.default, bool):
            kind = {"action": argparse.BooleanOptionalAction}
        elif choices(field.name):
            kind = {"choices": choices(field.name)}
        parser.add_argument(f"--{field.name.replace('_', '-')}", default=field.default, **kind)
    parser.add_argument("--all", action="store_true", help="all methods, one after another")
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
        recipe = Recipe(**{field.name: getattr(options, field.name) for field in fields(Recipe)})
    except ValueError as error:
        parser.error(str(error))
    return recipe, options


def main(argv: Sequence[str] | None = None) -> int:
    """Prove as the command line says.

    Returns:
        The exit code: 0; 1 on rank 0 where the ranks are not equal to one process; 2 for usage.
    """
    recipe, options = parse(argv)
    # Without a short time-out, a rank that skips a collective makes the others wait 30 minutes.
    timeout = timedelta(seconds=options.timeout)
    try:
        with join_world(options.backend, group_of_one=True, timeout=timeout) as world:
            try:
                recipe.check_world(world.size)
            except ValueError as error:
                raise UsageError(str(error)) from None
            report = prove_all(recipe, world) if options.all else prove(recipe, world)
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
