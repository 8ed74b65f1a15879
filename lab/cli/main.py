"""The verbs of the `lab` command."""

import inspect
from collections.abc import Callable
from typing import Any

import typer

from lab import __version__
from lab.cli import (
    bench,
    build,
    check,
    ckpt,
    deploy,
    doctor,
    hosts,
    labs,
    lesson,
    manage,
    new,
    prove,
    render,
    run,
    runs,
    submit,
    trust,
    why,
    zoo,
)

app = typer.Typer(
    name="lab",
    help="A multi-node lab for PyTorch: real separate nodes, any torchrun-style script, "
    "and the truth about what happened.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(panel: str, name: str, verb: Callable[..., None], *, takes_rest: bool = False) -> None:
    """`takes_rest`: what follows the first word is not ours, though it may look like an option."""
    # Typer breaks lines where the docstring does; they are wrapped for source, not for a terminal.
    paragraphs = (inspect.getdoc(verb) or "").split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    settings: dict[Any, Any] = {"allow_interspersed_args": False} if takes_rest else {}
    app.command(name, help=text, rich_help_panel=panel, context_settings=settings)(verb)


_HERE = "Labs and runs"
_add(_HERE, "up", labs.up)
_add(_HERE, "run", run.run, takes_rest=True)
_add(_HERE, "ps", runs.ps)
_add(_HERE, "logs", runs.logs)
_add(_HERE, "show", manage.show)
_add(_HERE, "why", why.why)
_add(_HERE, "stop", manage.stop)
_add(_HERE, "rm", manage.rm)
_add(_HERE, "exec", labs.exec_, takes_rest=True)
_add(_HERE, "down", labs.down)
_add(_HERE, "gc", labs.gc)

_HOSTS = "Hosts over SSH"
_add(_HOSTS, "deploy", deploy.deploy)
_add(_HOSTS, "hosts", hosts.hosts)
_add(_HOSTS, "trust", trust.trust)

_SLURM = "Jobs of Slurm"
_add(_SLURM, "submit", submit.submit, takes_rest=True)
_add(_SLURM, "requeue", submit.requeue)

_BEFORE = "Look before you leap"
_add(_BEFORE, "doctor", doctor.doctor)
_add(_BEFORE, "check", check.check)
_add(_BEFORE, "render", render.render)
_add(_BEFORE, "build", build.build)

_LEARN = "Learn and measure"
_add(_LEARN, "prove", prove.prove)
_add(_LEARN, "new", new.new)
app.add_typer(bench.app, name="bench", rich_help_panel=_LEARN)
app.add_typer(ckpt.app, name="ckpt", rich_help_panel=_LEARN)
app.add_typer(lesson.app, name="lesson", rich_help_panel=_LEARN)
app.add_typer(zoo.app, name="zoo", rich_help_panel=_LEARN)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lab {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    del version  # its callback has done it
