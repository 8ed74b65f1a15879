"""What the terminal shows of the end of a run."""

import sys
from typing import TYPE_CHECKING

from lab.cli.console import colours_wanted
from lab.cli.findings import print_finding
from lab.cli.output import say

if TYPE_CHECKING:
    from lab.diagnose.finding import Finding
    from lab.runs.verdict import Failure, Verdict

LAST_LINES = 30
"""How much of a traceback the end of a run repeats."""
TOLD = ("failed", "unknown")
"""Kinds of findings whose sentence says no more than the end of the run itself, if they are about
its rank."""
MOST_OTHERS = 8
"""How many other reasons of failure the end of a run tells of."""


def print_verdict(verdict: "Verdict") -> None:
    """The end of a run on stderr: what failed and how, and last who did it."""
    if verdict.first is not None:
        _print_failure(verdict, verdict.first)
        return
    if verdict.why is not None and verdict.kind in ("ok", "timeout"):
        print_finding(verdict.why, sys.stderr)
    end = "; all ranks have ended"
    if verdict.kind == "ok":
        end = ""
    elif verdict.silent:
        names = ", ".join(verdict.silent)
        end = f"; no answer from {names}, where ranks may be left: lab down removes them"
    say(f"lab: {verdict.summary}{end}")


def _print_failure(verdict: "Verdict", first: "Failure") -> None:
    _print_others(verdict, first)
    if verdict.is_of_another:
        say(f"lab: the first consequence: {first}")
    words = first.traceback.rstrip().splitlines() if first.traceback else []
    words = words or list(first.last_lines)
    if words:
        say(f"lab: the last words of rank {first.rank} on {first.node}:")
        for word in words[-LAST_LINES:]:
            say(f"  {word}")
    if verdict.why is not None and _says_more(verdict.why, verdict, first):
        print_finding(verdict.why, sys.stderr)
    red, reset = ("\033[31m", "\033[0m") if colours_wanted(sys.stderr) else ("", "")
    end = verdict.summary if verdict.is_of_another else str(first)
    say(f"{red}lab: {end} (exit code {verdict.exit_code}){reset}")
    if verdict.hint:
        say(f"lab: {verdict.hint}")


def _print_others(verdict: "Verdict", first: "Failure") -> None:
    """What became of the other ranks."""
    from lab.runs.verdict import ranks_in_words

    victims = {*verdict.victims}
    if verdict.is_of_another and verdict.why is not None:  # who did it may have failed later, too
        victims = {*victims, first.rank} - {*verdict.why.ranks}
    told = {
        "failed as a consequence": victims,
        "failed too": verdict.others,
        "ended by lab": verdict.ended,
    }
    others = [f"{ranks_in_words(ranks)} {what}" for what, ranks in told.items() if ranks]
    if others:
        say(f"lab: {'; '.join(others)}")
    for other in verdict.other_reasons[:MOST_OTHERS]:
        say(f"lab: for another reason failed {other}")


def _says_more(why: "Finding", verdict: "Verdict", first: "Failure") -> bool:
    """Whether a finding tells anything that the last line does not."""
    return bool(
        why.kind not in TOLD
        or {*why.ranks} - {first.rank, *verdict.others}
        or (first.file is None and why.file is not None)  # where a signal met it
        or (why.kind == "failed" and (why.innocent or why.evidence))
    )
