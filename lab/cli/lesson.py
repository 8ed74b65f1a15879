"""`lab lesson`: the exercises of the lessons as commands with answers."""

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lab.cli.console import (
    Prefixes,
    RunConsole,
    print_table,
    progress_line,
)
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
from lab.cli.output import say
from lab.errors import EXIT_FAILURE, UsageError
from lab.lessons import LESSONS, RESULT, Lesson, Report, find_lessons

if TYPE_CHECKING:
    from lab.topology import Topology

app = typer.Typer(help="Exercises with their answers, measured here.", no_args_is_help=True)


def _complete(incomplete: str) -> list[str]:
    return [name for name in ("all", *(lesson.name for lesson in LESSONS)) if incomplete in name]


NamesArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME...", help="Lessons, or all.", show_default=False, autocompletion=_complete
    ),
]


@dataclass(frozen=True)
class Outcome:
    """What came of one lesson."""

    lesson: Lesson
    run: str
    """The run's id."""
    report: Report | None
    """None: it did not come to its end."""
    summary: str
    """Of the run's verdict."""

    @property
    def ok(self) -> bool:
        """Whether all was as theory says."""
        return self.report is not None and self.report.ok

    @property
    def fault(self) -> str:
        """What was not, in words; empty where all was."""
        if self.report is None:
            return self.summary
        return "; ".join(
            f"{finding.what}: {finding.measured}, theory: {finding.theory}"
            for finding in self.report.failed
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        report = {} if self.report is None else self.report.to_json()
        names = {"lesson": self.lesson.name, "run": self.run}
        return {**names, **report, "ok": self.ok, "fault": self.fault}


@app.command("list")
def list_(as_json: JsonOption = False) -> None:
    """All lessons, in the order in which they teach."""
    if as_json:
        rows = [{"name": lesson.name, "title": lesson.title} for lesson in LESSONS]
        print(json.dumps(rows, indent=2))
        return
    width = max(len(lesson.name) for lesson in LESSONS)
    for lesson in LESSONS:
        print(f"{lesson.name:<{width}}  {lesson.title}")


@app.command()
def explain(names: NamesArgument) -> None:
    """The exercise and its theory, and where its code is."""
    for number, lesson in enumerate(find_lessons(names)):
        print("\n" * (number > 0) + f"{lesson.text}\n")
        print(f"code:  {lesson.path}")
        print(f"do it: lab lesson run {lesson.name}")


@app.command()
def run(
    names: NamesArgument,
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    slots: SlotsOption = None,
    on: OnOption = None,
    backend: BackendOption = None,
    as_json: JsonOption = False,
) -> None:
    """Do lessons on the ranks of a topology: measure, and compare with theory.

    Exit code 1 where something is not as theory says; the lesson and what it expected are named.
    """
    from lab.topology import load_topology

    lessons = find_lessons(names)
    loaded = load_topology(topology, nodes=nodes, slots=slots, on=on, backend=backend)
    for lesson in lessons:
        if loaded.world_size < lesson.ranks:
            raise UsageError(
                f"{lesson.name} needs at least {lesson.ranks} ranks, and {loaded.name} has "
                f"{loaded.world_size}: add --nodes {lesson.ranks}"
            )
    outcomes: list[Outcome] = []
    while left := lessons[len(outcomes) :]:  # more than once where one ended the run
        outcomes += _run(left, loaded, quiet=as_json)
    ok = all(outcome.ok for outcome in outcomes)
    if as_json:
        document = {"ok": ok, "lessons": [outcome.to_json() for outcome in outcomes]}
        print(json.dumps(document, indent=2))
    else:
        _show(outcomes)
    raise typer.Exit(0 if ok else EXIT_FAILURE)


def _run(lessons: list[Lesson], topology: "Topology", *, quiet: bool) -> list[Outcome]:
    """Do lessons in one run, up to one that ends it; ends here where the user interrupts it."""
    from lab.batch.execute import execute
    from lab.runs.job import Job

    modules = [lesson.module for lesson in lessons]
    words = ["lab.lessons.worker", "--backend", topology.resolved_backend(), *modules]
    job = Job.from_command_line(words, module=True, topology=topology, cwd=Path.cwd())
    console = RunConsole(Prefixes({rank.rank: rank.node.name for rank in topology.ranks()}))
    with nodes_told(topology):
        directory, verdict = execute(topology, job, progress_line(), [] if quiet else [console])
    if verdict.kind == "interrupted":
        print_verdict(verdict)
        raise typer.Exit(verdict.exit_code)
    outcomes = []
    for lesson in lessons:
        data = directory.read_json(RESULT.format(module=lesson.module))
        report = None if data is None else Report.from_json(data)
        outcomes.append(Outcome(lesson, directory.id, report, verdict.summary))
        if report is None:
            break
    # The exit code must follow from the reports: else something else went wrong as well.
    ok = all(outcome.ok for outcome in outcomes)
    if verdict.exit_code != (0 if ok else EXIT_FAILURE) or outcomes[-1].report is None:
        outcomes[-1] = replace(outcomes[-1], report=None)
        if not quiet:
            print_verdict(verdict)
    return outcomes


def _show(outcomes: list[Outcome]) -> None:
    """A row for each lesson, then what was not as theory says."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in ("lesson", "seconds", "expected", "held", "ok"):
        table.add_column(column, justify="left" if column == "lesson" else "right")
    for outcome in outcomes:
        report = outcome.report
        table.add_row(
            outcome.lesson.name,
            "-" if report is None else f"{report.seconds:.1f}",
            "-" if report is None else str(report.judged),
            "-" if report is None else str(report.judged - len(report.failed)),
            "yes" if outcome.ok else "NO",
        )
    print_table(table)
    sys.stdout.flush()
    for outcome in outcomes:
        if not outcome.ok:
            say(f"lab: {outcome.lesson.name}: {outcome.fault} (run {outcome.run})")
