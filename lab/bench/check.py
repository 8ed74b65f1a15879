"""Wall time and peak memory of `lab check` by cluster size, and of `lab --help`."""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lab.errors import LabError

SIZES = (100, 1_000, 10_000)
LAB = (sys.executable, "-m", "lab.cli.main")


def bench_check(runs: int = 5) -> list[dict[str, Any]]:
    """Measure in a fresh process each time; one run of each goes before and does not count.

    Args:
        runs: counted runs of each command. They alternate, so that a slow moment of the machine
            falls on all of them.

    Returns:
        A row for each command: `command`, `nodes`, the median, least and most of its wall time
        in seconds and of its peak resident set size in MiB.

    Raises:
        LabError: a command failed.
    """
    with tempfile.TemporaryDirectory(prefix="lab-bench-") as folder:
        cases = _cases(Path(folder))
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name, _, _ in cases}
        for number in range(runs + 1):
            for name, _, argv in cases:
                measured = _measure(argv)
                if number > 0:
                    taken[name].append(measured)
    return [_row(name, nodes, taken[name]) for name, nodes, _ in cases]


def _cases(folder: Path) -> list[tuple[str, int, Sequence[str]]]:
    """Name, number of nodes and argv of each command; writes the topologies they read."""
    cases: list[tuple[str, int, Sequence[str]]] = [("lab --help", 0, (*LAB, "--help"))]
    for nodes in SIZES:
        path = folder / f"set-{nodes}.yaml"
        path.write_text(f"nodes: node[0-{nodes - 1}]\nslots: 8\n", encoding="utf-8")
        cases.append((f"lab check, {nodes:,} as a set", nodes, (*LAB, "check", str(path))))
    for nodes in SIZES:
        path = folder / f"list-{nodes}.yaml"
        entries = "".join(
            f"  - name: node{i}\n    address: 10.{i >> 16}.{i >> 8 & 255}.{i & 255}\n    slots: 8\n"
            for i in range(1, nodes + 1)
        )
        path.write_text(f"nodes:\n{entries}", encoding="utf-8")
        cases.append((f"lab check, {nodes:,} as a list", nodes, (*LAB, "check", str(path))))
    return cases


def _measure(argv: Sequence[str]) -> tuple[float, float]:
    """Seconds and peak MiB of one process; its own, since wait4 reports on no other."""
    started = time.perf_counter()
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    with process.stderr as stream:
        words = stream.read()
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise LabError(f"{' '.join(argv)} failed: {words.decode(errors='replace').strip()}")
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
