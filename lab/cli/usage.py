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
    things = "commands" if hasattr(error.ctx.command, "commands") else "options"
    takes_script = option is not None and error.ctx.info_name in ("run", "submit")
    further = "; those of a script come after it" if takes_script else ""
    return f"{text}; {error.ctx.command_path} --help has the {things}{further}"


def _script_with_a_dash(option: str | None) -> str | None:
    """The word of the command line in which that option was found, if it is a script."""
    if option is None:
        return None
    words = (word for word in sys.argv[1:] if word.startswith("-") and option[1:] in word)
    return next((word for word in words if Path(word).is_file() or word.endswith(".py")), None)
