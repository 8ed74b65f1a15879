"""How a finding is shown in the terminal: the sentence first, then who waits, then the evidence."""

from typing import TYPE_CHECKING, TextIO

from lab.cli.console import colours_wanted
from lab.cli.output import one_line, write

if TYPE_CHECKING:
    from lab.diagnose.finding import Finding, Innocent

COLOURS = {"error": 31, "warning": 33}


def print_finding(finding: "Finding", file: TextIO) -> None:
    """Write a finding; with colours where the file is a terminal and NO_COLOR is not set."""
    write("".join(f"{line}\n" for line in lines_of(finding, colours_wanted(file))), file)


def lines_of(finding: "Finding", colour: bool = False) -> list[str]:
    """The lines of a finding: as many as it needs, none of them folded."""
    from lab.diagnose.words import place_in_words

    on, off = (f"\033[{COLOURS[finding.severity]}m", "\033[0m") if colour else ("", "")
    below = [_innocent(one) for one in finding.innocent]
    below += [f"- {sentence}" for sentence in finding.evidence]
    place = place_in_words(finding.file, finding.line)
    if place is not None and place not in finding.summary:
        below.insert(0, f"at {place}" + (f", step {finding.step}" if finding.step else ""))
    if finding.cure:
        below.append(f"cure: {finding.cure}")
    how = "warning: " if finding.severity == "warning" else ""
    first = f"{on}lab: {how}{finding.kind}:{off} {one_line(finding.summary)}"
    return [first, *(f"  {one_line(line)}" for line in below)]


def _innocent(innocent: "Innocent") -> str:
    from lab.diagnose.words import clock, place_in_words, ranks_in_words

    place = place_in_words(innocent.file, innocent.line)
    at = f" at {place}" if place else ""
    since = f" since {clock(innocent.since)}" if innocent.since is not None else ""
    return f"innocent: {ranks_in_words(innocent.ranks)} {innocent.what}{at}{since}"
