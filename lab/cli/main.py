"""The verbs of the `lab` command."""

import typer

from lab import __version__
from lab.cli import bench, build, check, labs, manage, prove, render, run, runs

app = typer.Typer(
    name="lab",
    help="A multi-node lab for PyTorch: real separate nodes, any torchrun-style script, "
    "and the truth about what happened.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_HERE = "Labs and runs"
app.command("up", rich_help_panel=_HERE)(labs.up)
app.command(
    "run",
    rich_help_panel=_HERE,
    context_settings={"allow_interspersed_args": False},
)(run.run)
app.command("ps", rich_help_panel=_HERE)(runs.ps)
app.command("logs", rich_help_panel=_HERE)(runs.logs)
app.command("show", rich_help_panel=_HERE)(manage.show)
app.command("stop", rich_help_panel=_HERE)(manage.stop)
app.command("rm", rich_help_panel=_HERE)(manage.rm)
app.command("exec", rich_help_panel=_HERE, context_settings={"allow_interspersed_args": False})(
    labs.exec_
)
app.command("down", rich_help_panel=_HERE)(labs.down)
app.command("gc", rich_help_panel=_HERE)(labs.gc)

_BEFORE = "Look before you leap"
app.command("check", rich_help_panel=_BEFORE)(check.check)
app.command("render", rich_help_panel=_BEFORE)(render.render)
app.command("build", rich_help_panel=_BEFORE)(build.build)

_LEARN = "Learn and measure"
app.command("prove", rich_help_panel=_LEARN)(prove.prove)
app.add_typer(bench.app, name="bench", rich_help_panel=_LEARN)


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
