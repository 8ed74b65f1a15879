"""`lab zoo`: scripts with one fault each, and whether lab names it."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.console import print_table, progress_line
from lab.cli.options import JsonOption, OnOption, TopologyOption
from lab.cli.output import say
from lab.errors import EXIT_FAILURE, UsageError

if TYPE_CHECKING:
    from lab.topology import Place
    from lab.zoo.case import Case
    from lab.zoo.report import Report

app = typer.Typer(
    help="Scripts with one fault each, and whether lab names it.", no_args_is_help=True
)


def _complete(incomplete: str) -> list[str]:
    from lab.zoo.registry import all_cases

    return [case.name for case in all_cases() if incomplete in case.name]


_NAMES = typer.Argument(
    metavar="NAME...", help="Cases.", show_default=False, autocompletion=_complete
)


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """All cases, and the kind of finding that each one is about."""
    from lab.zoo.registry import all_cases

    cases = all_cases()
    if as_json:
        print(json.dumps([case.model_dump(mode="json") for case in cases], indent=2))
        return
    names = max(len(case.name) for case in cases)
    kinds = max(len(case.expect.kind) for case in cases)
    for case in cases:
        only = f" (only on {', '.join(case.where)})" if case.elsewhere else ""
        print(f"{case.name:<{names}}  {case.expect.kind:<{kinds}}  {case.title}{only}")


@app.command()
def explain(names: Annotated[list[str], _NAMES]) -> None:
    """What goes wrong in a case, how it shows in the field, how lab sees it, and the cure."""
    from textwrap import fill

    from lab.zoo.registry import find_cases

    for number, case in enumerate(find_cases(names)):
        print("\n" * (number > 0) + f"{case.name}: {case.title}\n")
        for what, text in (
            ("what goes wrong", case.wrong),
            ("in the field", case.field),
            ("what lab sees", f"{case.expect.kind}. {case.seen}"),
            *([(f"only on {', '.join(case.where)}", case.elsewhere)] if case.elsewhere else ()),
        ):
            print(fill(f"{what}: {text}", width=92, subsequent_indent="  ") + "\n")
        print(case.difference)
        print(f"script: {case.folder / ('healthy.py' if case.cut else 'fault.py')}")
        print(f"do it:  lab zoo run {case.name}{_elsewhere(case)}")


@app.command()
def run(
    names: Annotated[list[str] | None, _NAMES] = None,
    run_all: Annotated[
        bool, typer.Option("--all", help="All cases of the place, and healthy training jobs.")
    ] = False,
    topology: TopologyOption = None,
    on: OnOption = None,
    at_once: Annotated[int, typer.Option("--at-once", min=1, help="Runs at a time.")] = 2,
    as_json: JsonOption = False,
) -> None:
    """Run cases and their healthy twins, and compare what lab finds with what is wrong.

    Exit code 1 where a kind, a rank or a line is not right, or where something is said against a
    healthy run. Scripts and runs are in outputs/zoo, to look into: lab why and lab logs there.

    By default as processes of this machine; with -t on the hosts of a topology.
    """
    from lab.topology.source import PRESETS, with_ending
    from lab.zoo.registry import all_cases
    from lab.zoo.report import go_through
    from lab.zoo.runner import Zoo
    from lab.zoo.workloads import WORKLOADS

    place = _place_of(topology, on)
    if run_all == bool(names):
        raise UsageError("name cases, or --all; lab zoo list shows them")
    cases = _chosen(names, place)
    left_out = [case for case in all_cases() if place not in case.where] if run_all else []
    workloads = WORKLOADS if run_all else ()
    nodes = max(run.nodes for run in (*cases, *workloads))
    if topology is not None and topology not in PRESETS:
        file = with_ending(Path(topology).expanduser())
        if file.is_file():  # the zoo has a folder of its own
            topology = str(file.absolute())
    zoo = Zoo(Path("outputs", "zoo"), place, nodes, at_once, topology)
    with progress_line() as progress, zoo:
        report = go_through(zoo, cases, left_out, workloads, progress)
    if as_json:
        print(json.dumps(report.to_json(), indent=2))
    else:
        _show(report)
    raise typer.Exit(0 if report.ok else EXIT_FAILURE)


def _chosen(names: list[str] | None, place: "Place") -> "list[Case]":
    """The cases of these names; without names all that can occur there."""
    from lab.zoo.registry import all_cases, find_cases

    if not names:
        return [case for case in all_cases() if place in case.where]
    cases = find_cases(names)
    for case in cases:
        if place not in case.where:
            why = f"{case.name} cannot occur on {place}: {case.elsewhere}"
            raise UsageError(f"{why}; add{_elsewhere(case)}")
    return cases


def _place_of(topology: str | None, on: str | None) -> "Place":
    from lab.topology import load_topology

    return "local" if topology is None and on is None else load_topology(topology, on=on).on


def _elsewhere(case: "Case") -> str:
    return "" if "local" in case.where else f" --on {case.where[0]}"


def _show(report: "Report") -> None:
    """A row for each case, the sums, then what is not right."""
    from rich.table import Table

    from lab.cli.findings import print_finding

    scores = report.scores
    if len(scores) == 1 and scores[0].found is not None:
        print_finding(scores[0].found, sys.stdout)
        print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("case", "expected", "kind", "ranks", "line", "twin"):
        table.add_column(column)
    for score in scores:
        right = (score.kind, score.ranks, score.line, not score.alarms)
        cells = ["yes" if one else "NO" for one in right]
        if score.others:
            cells[0] += f", and {', '.join(sorted({one.kind for one in score.others}))}"
        if not score.case.lines:
            cells[2] = "-"
        table.add_row(score.case.name, score.case.expect.kind, *cells)
    print_table(table)
    sys.stdout.flush()
    say(f"lab: {report.sums}")
    for case in report.left_out:
        say(f"lab: {case.name} cannot occur on {report.on}: {case.elsewhere}")
    for score in scores:
        for fault in score.faults if not score.ok else ():
            say(f"lab: {score.case.name}: {fault} (run {score.fault.run})")
    for name, sentences in report.alarms.items():
        for sentence in sentences:
            say(f"lab: false alarm on {name}: {sentence}")
