"""Command-line arguments of the jobs: a wrong one ends with one line and exit code 2."""

import argparse
import math
from typing import NoReturn

from lab.errors import EXIT_USAGE


class ArgumentParser(argparse.ArgumentParser):
    """argparse, saying what is wrong in one line; `--help` says the rest."""

    def error(self, message: str) -> NoReturn:
        """End with the message on stderr."""
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n")


def positive_int(text: str) -> int:
    """1, 2, 3..."""
    return _at_least(1, text)


def count(text: str) -> int:
    """0, 1, 2..."""
    return _at_least(0, text)


def positive_float(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number above 0")
    return value


def _at_least(least: int, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = least - 1
    if value < least:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, at least {least}")
    return value
