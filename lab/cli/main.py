"""The verbs of the `lab` command.

Each is imported, and its options are looked at, when it is called for.
"""

import inspect
import traceback
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_group

from lab import __version__
from lab.cli.output import say
from lab.errors import LabError
from lab.interrupts import Terminated

_HERE = "Labs and runs"
_HOSTS = "Hosts over SSH"
_SLURM = "Jobs of Slurm"
_BEFORE = "Look before you leap"
_LEARN = "Learn and measure"


class _Verb(NamedTuple):
    """Where a verb is, and how the help shows it."""

    panel: str
    module: str
    function: str | None
    """None: the module has an `app` of several commands."""
    takes_rest: bool = False
    """What follows the first word is not ours, though it may look like an option."""


_VERBS = {
    "up": _Verb(_HERE, "labs", "up"),
    "run": _Verb(_HERE, "run", "run", takes_rest=True),
    "ps": _Verb(_HERE, "runs", "ps"),
    "logs": _Verb(_HERE, "runs", "logs"),
    "show": _Verb(_HERE, "manage", "show"),
    "why": _Verb(_HERE, "why", "why"),
    "stop": _Verb(_HERE, "manage", "stop"),
    "rm": _Verb(_HERE, "manage", "rm"),
    "exec": _Verb(_HERE, "labs", "exec_", takes_rest=True),
    "down": _Verb(_HERE, "labs", "down"),
    "gc": _Verb(_HERE, "labs", "gc"),
    "deploy": _Verb(_HOSTS, "deploy", "deploy"),
    "hosts": _Verb(_HOSTS, "hosts", "hosts"),
    "trust": _Verb(_HOSTS, "trust", "trust"),
    "submit": _Verb(_SLURM, "submit", "submit", takes_rest=True),
    "requeue": _Verb(_SLURM, "submit", "requeue"),
    "doctor": _Verb(_BEFORE, "doctor", "doctor"),
    "check": _Verb(_BEFORE, "check", "check"),
    "render": _Verb(_BEFORE, "render", "render"),
    "build": _Verb(_BEFORE, "build", "build"),
    "prove": _Verb(_LEARN, "prove", "prove"),
    "new": _Verb(_LEARN, "new", "new"),
    "bench": _Verb(_LEARN, "bench", None),
    "ckpt": _Verb(_LEARN, "ckpt", None),
    "lesson": _Verb(_LEARN, "lesson", None),
    "zoo": _Verb(_LEARN, "zoo", None),
}


class _Commands(Mapping[str, Any]):
    """The parser's commands by verb, made when they are looked at."""

    def __getitem__(self, name: str) -> Any:
        verb = _VERBS[name]
        module = import_module(f"lab.cli.{verb.module}")
        holder = typer.Typer(pretty_exceptions_enable=False)
        if verb.function is None:
            holder.add_typer(module.app, name=name, rich_help_panel=verb.panel)
        else:
            function = getattr(module, verb.function)
            settings: dict[Any, Any] = {}
            if verb.takes_rest:
                settings["allow_interspersed_args"] = False
            named = holder.command(
                name,
                help=_help(function),
                rich_help_panel=verb.panel,
                context_settings=settings,
            )
            named(function)
        return get_group(holder).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_VERBS)

    def __len__(self) -> int:
        return len(_VERBS)


def _help(function: Any) -> str:
    """Typer breaks lines where the docstring does; they are wrapped for source, not a terminal."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


class _Group(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: Any) -> Any:
        """Run a command; of Ctrl-C and SIGTERM one line is said, with what they have left.

        Raises:
            LabError: what it read ended too early. The parser would end without a word, as where
                somebody ends a prompt with Ctrl-D; of that it hears otherwise (`typer.Abort`).
        """
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as interrupt:
            say("; ".join(("lab: interrupted", *map(str, interrupt.args))))
            raise
        except Terminated as end:
            if end.is_told:
                say("; ".join(("lab: ended by SIGTERM", *end.left)))
            raise
        except EOFError as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(place.filename).name}:{place.lineno}"
            what = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise LabError(f"what lab was reading ended too early: {what} ({where})") from error


app = typer.Typer(
    name="lab",
    cls=_Group,
    help="A multi-node lab for PyTorch: real separate nodes, any torchrun-style script, "
    "and the truth about what happened.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
