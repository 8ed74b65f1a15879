"""Mistakes on the command line, as one line: what is wrong, and the cure."""

import re
import sys
from pathlib import Path
from typing import Any

import typer

from lab.errors import EXIT_FAILURE, EXIT_USAGE, UsageError

_MISTAKE: Any = typer.BadParameter.__base__
"""The parser's own error, which Typer has at different places in its versions."""


def call(app: typer.Typer) -> int:
    """Run the command that this process was called with; its exit code.

    Raises:
        UsageError: there is no such command or option, or it does not go like that.
        BrokenPipeError: nobody reads what it prints any more.
    """
    try:
        return app(prog_name="lab", standalone_mode=False) or 0
    except SystemExit as end:
        # The parser and rich take a reader that has gone for a failure, each by itself.
        if isinstance(end.__context__, BrokenPipeError):
            raise end.__context__ from None
        raise
    except typer.Abort:
        return EXIT_FAILURE
    except _MISTAKE as error:
        if not error.format_message():  # nothing was asked for: the help has been shown instead
            return EXIT_USAGE
        raise UsageError(_explained(error)) from error


def _explained(error: Any) -> str:
    option = getattr(error, "option_name", None)
    script = _script_with_a_dash(option)
    if script is not None:
        return f"{script} is taken for options; a script of that name is ./{script}"
    text = " ".join(error.format_message().split()).rstrip(".")
    text = re.sub(r"^Invalid value for '(\S+)'(.*?): (Value error, )?", r"\1\2: ", text)
    text = re.sub(r"Input should be (.*?)(, unable to parse .*)?$", r"must be \1", text)
    text = re.sub(r"\(Possible options: (.*)\)$", r"(did you mean \1?)", text)
    text = text[0].lower() + text[1:]
    if error.ctx is None:  # a value is missing, or one too many: known before any command is
        verb = sys.argv[1] if sys.argv[1].isalpha() else ""
        return f"{text}; {f'lab {verb}'.rstrip()} --help has the options"
    if meant := _meant(error.ctx, text):
        text += f"; did you mean {meant}?"
    things = "commands" if hasattr(error.ctx.command, "commands") else "options"
    takes_script = option is not None and error.ctx.info_name in ("run", "submit")
    further = "; those of a script come after it" if takes_script else ""
    return f"{text}; {error.ctx.command_path} --help has the {things}{further}"


def _meant(context: Any, text: str) -> str | None:
    """What a name stands for that was given as if it were a command, or the only argument."""
    verb, command = context.info_name, context.command_path
    if found := re.fullmatch(r"no such command '(.+)'", text):
        name = found[1]
        first, second = ("ls", "show") if verb == "ckpt" else ("run", "explain")
        if _has(verb, name):
            return f"{command} {first} {name}, or {command} {second} {name}"
    elif found := re.search(r" extra argument\(s\) \((\S+)\)$", text):
        name = found[1]
        options = [option for one in context.command.params for option in one.opts]
        if "--parallel" in options and _is_method(name):
            return f"--parallel {name}"
        if "--topology" in options and _may_be_topology(name):
            return f"-t {name}"
    return None


def _has(verb: str, name: str) -> bool:
    """Whether the commands of a verb take that name."""
    if verb == "lesson":
        from lab.lessons import LESSONS

        return any(lesson.name == name for lesson in LESSONS)
    if verb == "zoo":
        from lab.zoo.registry import all_cases

        return any(case.name == name for case in all_cases())
    return verb == "ckpt" and Path(name).is_dir()


def _is_method(name: str) -> bool:
    from lab.training.methods import PARALLEL

    return name in (*PARALLEL, "all")


def _may_be_topology(name: str) -> bool:
    from lab.topology import PRESETS, SLURM_LAB, SSH_LAB

    return name in (*PRESETS, SSH_LAB, SLURM_LAB) or Path(name).suffix in (".yaml", ".yml")


def _script_with_a_dash(option: str | None) -> str | None:
    """The word of the command line in which that option was found, if it is a script."""
    if option is None:
        return None
    words = (word for word in sys.argv[1:] if word.startswith("-") and option[1:] in word)
    return next((word for word in words if Path(word).is_file() or word.endswith(".py")), None)
