"""`lab prove`: N ranks against one process, step by step."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from lab.cli.console import Prefixes, RunConsole, progress_line
from lab.cli.ending import print_verdict
from lab.cli.interrupted import nodes_told
from lab.cli.options import (
    BackendOption,
    JsonOption,
    NodesOption,
    OnOption,
    SlotsOption,
    TopologyOption,
)
from lab.errors import EXIT_FAILURE, LabError, UsageError
from lab.prove import Matrix, Recipe, Report
from lab.prove.recipe import AllReduce, CommHook, Mean, OptimizerName, Precision
from lab.training.methods import Impl, Parallel

if TYPE_CHECKING:
    from lab.topology import Topology


REPORT, MATRIX = Path("outputs/ddp-demo.json"), Path("outputs/prove-all.json")
"""Where the JSON goes unless the user says otherwise."""
RECIPE = "skill-distributed-fsdp-ddp.md"
"""docs/recipe.md, beside the JSON: how a script comes to do what was proven."""


def prove(
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    on: OnOption = None,
    backend: BackendOption = None,
    steps: Annotated[
        int, typer.Option(min=1, help="Optimiser steps. Rounding adds up over many hundreds.")
    ] = 20,
    parallel: Annotated[
        Literal[Parallel, "all"],
        typer.Option(help="How the ranks share the work. all: every method with every option."),
    ] = "ddp",
    impl: Annotated[
        Impl, typer.Option(help="lab.parallel's, PyTorch's, or the one-page MinimalDDP.")
    ] = "ours",
    all_reduce: Annotated[
        AllReduce, typer.Option(help="ordered: sums in rank order, so bitwise equal on any ranks.")
    ] = "flat",
    mean: Annotated[Mean, typer.Option(help="As DDP's argument.")] = "sum_then_divide",
    comm_hook: Annotated[
        CommHook, typer.Option(help="Compress DDP's gradients on their way.")
    ] = "none",
    bucket_cap_mb: Annotated[
        float, typer.Option(min=0, help="MiB of gradients sent together; 0: each by itself.")
    ] = 25,
    find_unused_parameters: Annotated[
        bool, typer.Option("--find-unused-parameters", help="As DDP's argument.")
    ] = False,
    static_graph: Annotated[
        bool, typer.Option("--static-graph", help="As DDP's argument.")
    ] = False,
    reshard_after_forward: Annotated[
        bool, typer.Option(help="Free FSDP's units between forward and backward.")
    ] = True,
    prefetch: Annotated[
        bool, typer.Option(help="Gather FSDP's next unit while one computes.")
    ] = True,
    precision: Annotated[
        Precision, typer.Option(help="Of FSDP's forward and backward.")
    ] = "float32",
    optimizer: Annotated[OptimizerName, typer.Option(help="What takes the steps.")] = "adam",
    batch_size: Annotated[int, typer.Option(min=1, help="Samples per microbatch and rank.")] = 32,
    accumulate: Annotated[
        int, typer.Option(min=1, help="Microbatches per step; no_sync for all but the last.")
    ] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help=f"Where the report goes as JSON. Default: {REPORT}, of all: {MATRIX}.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Prove that the ranks compute what one process computes.

    Trains the Wine classifier on every rank of the topology, then the same in one process that
    accumulates the ranks' batches in rank order, and compares the two after every step. Exit code 1
    where they are not bitwise equal though sums have one order, or further apart than 1e-6; where
    the ranks differ among themselves, or bytes and memory are not those of the formulas.
    """
    from lab.packaged import packaged
    from lab.topology import load_topology

    loaded = load_topology(topology, nodes=nodes, slots=slots, on=on, backend=backend)
    try:
        recipe = Recipe(
            steps=steps,
            batch_size=batch_size,
            accumulate=accumulate,
            optimizer=optimizer,
            parallel="ddp" if parallel == "all" else parallel,
            impl=impl,
            all_reduce=all_reduce,
            mean=mean,
            comm_hook=comm_hook,
            bucket_cap_mb=bucket_cap_mb,
            find_unused_parameters=find_unused_parameters,
            static_graph=static_graph,
            reshard_after_forward=reshard_after_forward,
            prefetch=prefetch,
            precision=precision,
        )
        recipe.check_world(loaded.world_size)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if parallel == "all" and recipe.title != Recipe().title:
        raise UsageError("--parallel all goes through all methods and options: leave theirs out")
    kind = Matrix if parallel == "all" else Report
    found = _run(loaded, recipe, kind, quiet=as_json)
    text = found.dumps()
    out = out or (MATRIX if isinstance(found, Matrix) else REPORT)
    _write(out, text)
    _write(out.with_name(RECIPE), packaged("docs/recipe.md").read_text(encoding="utf-8"))
    if as_json:
        sys.stdout.write(text)
    else:
        _show(found)
        print(
            f"lab: the report is in {out}, the recipe in {out.with_name(RECIPE)}", file=sys.stderr
        )
    raise typer.Exit(0 if found.ok else EXIT_FAILURE)


def _run(
    topology: "Topology", recipe: Recipe, kind: type[Report] | type[Matrix], *, quiet: bool
) -> Report | Matrix:
    """Prove on the topology's ranks; ends here where it did not come to a proof."""
    from lab.batch.execute import execute
    from lab.runs.job import Job

    words = ["lab.prove.worker", "--quiet", "--backend", topology.resolved_backend()]
    words += [*recipe.arguments(), *(["--all"] if kind is Matrix else [])]
    job = Job.from_command_line(words, module=True, topology=topology, cwd=Path.cwd())
    console = RunConsole(Prefixes({rank.rank: rank.node.name for rank in topology.ranks()}))
    how = "by every method" if kind is Matrix else recipe.title
    print(
        f"lab: {recipe.steps} steps on {topology.world_size} ranks of {topology.name} "
        f"({topology.on}), {how}, then the same in one process",
        file=sys.stderr,
    )
    # With --json stdout is for one document: what ranks print stays in the run directory.
    with nodes_told(topology):
        directory, verdict = execute(topology, job, progress_line(), [] if quiet else [console])
    path = directory.path / "prove.json"
    found = None
    if path.is_file():
        found = kind.from_json(json.loads(path.read_text(encoding="utf-8")))
    # The worker's exit code must follow from its report: else something else went wrong as well.
    if found is None or verdict.exit_code != (0 if found.ok else EXIT_FAILURE):
        print_verdict(verdict)
        raise typer.Exit(verdict.exit_code or EXIT_FAILURE)
    return found


def _write(path: Path, text: str) -> None:
    from lab.runs.files import write_atomically

    try:
        write_atomically(path, text)
    except OSError as error:
        raise LabError(f"the report {path} cannot be written: {error.strerror}") from error


def _show(found: Report | Matrix) -> None:
    from lab.cli.prove_tables import show_matrix, show_report  # rich is slow to import

    if isinstance(found, Matrix):
        show_matrix(found)
    else:
        show_report(found)
