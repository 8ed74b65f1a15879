"""Wall time and peak memory of `lab check` by cluster size, and of `lab --help`."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lab.channel import Progress
from lab.errors import LabError

SIZES = (100, 1_000, 10_000)
LAB = (sys.executable, "-P", "-m", "lab")


class Case(NamedTuple):
    """A command to measure."""

    name: str
    nodes: int
    argv: Sequence[str]
    expected: str
    """What it has to print: an exit code of 0 alone does not show that it did the work."""


def bench_check(runs: int, progress: Progress) -> list[dict[str, Any]]:
    """Measure in a fresh process each time; one run of each goes before and does not count.

    Args:
        runs: counted runs of each command. They alternate, so that a slow moment of the machine
            falls on all of them.
        progress: is told what is measured.

    Returns:
        A row for each command: `command`, `nodes`, the median, least and most of its wall time
        in seconds and of its peak resident set size in MiB.

    Raises:
        LabError: a command failed, or did not print what it should.
    """
    progress("measuring lab check and lab --help")
    with tempfile.TemporaryDirectory(prefix="lab-bench-") as folder:
        cases = _cases(Path(folder))
        taken: dict[str, list[tuple[float, float]]] = {case.name: [] for case in cases}
        for number in range(runs + 1):
            for case in cases:
                measured = _measure(case)
                if number > 0:
                    taken[case.name].append(measured)
    return [_row(case.name, case.nodes, taken[case.name]) for case in cases]


def _cases(folder: Path) -> list[Case]:
    """The commands; writes the topologies that they read."""
    cases = [Case("lab --help", 0, (*LAB, "--help"), "Usage: lab")]
    for nodes in SIZES:
        path = folder / f"set-{nodes}.yaml"
        path.write_text(f"nodes: node[0-{nodes - 1}]\nslots: 8\n", encoding="utf-8")
        cases.append(_check(f"lab check, {nodes:,} as a set", nodes, path))
    for nodes in SIZES:
        path = folder / f"list-{nodes}.yaml"
        entries = "".join(
            f"  - name: node{i}\n    address: 10.{i >> 16}.{i >> 8 & 255}.{i & 255}\n    slots: 8\n"
            for i in range(1, nodes + 1)
        )
        path.write_text(f"nodes:\n{entries}", encoding="utf-8")
        cases.append(_check(f"lab check, {nodes:,} as a list", nodes, path))
    return cases


def _check(name: str, nodes: int, path: Path) -> Case:
    return Case(name, nodes, (*LAB, "check", str(path)), f"ranks   {8 * nodes:,} (8 on each node)")


def _measure(case: Case) -> tuple[float, float]:
    """Seconds and peak MiB of one process; its own, since wait4 reports on no other."""
    # A file takes all it prints, where a pipe that nobody reads yet would stop it.
    with tempfile.TemporaryFile() as file:
        started = time.perf_counter()
        process = subprocess.Popen(case.argv, stdout=file, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        file.seek(0)
        printed = file.read().decode(errors="replace")
    if process.returncode != 0:
        raise LabError(f"{' '.join(case.argv)} failed: {printed.strip()}")
    if case.expected not in printed:
        shown = printed.strip()[-500:] or "nothing"
        raise LabError(f"{' '.join(case.argv)} did not print '{case.expected}' but: {shown}")
    unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes, Linux KiB
    return seconds, usage.ru_maxrss * unit / 2**20


def _row(name: str, nodes: int, taken: Sequence[tuple[float, float]]) -> dict[str, Any]:
    seconds = [pair[0] for pair in taken]
    memory = [pair[1] for pair in taken]
    return {
        "command": name,
        "nodes": nodes,
        "seconds": statistics.median(seconds),
        "min": min(seconds),
        "max": max(seconds),
        "peak MiB": statistics.median(memory),
        "min MiB": min(memory),
        "max MiB": max(memory),
        "all seconds": seconds,
    }
