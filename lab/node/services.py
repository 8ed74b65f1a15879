"""What this node's own commands say of its GPUs' links and of Slurm. Standard library only."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Any

WITHIN = 8.0
"""Seconds for one command: a driver that is just loaded takes some."""


def _answer(*argv: str, stdin: bytes = b"") -> tuple[int, str]:
    """The exit code of a command and what it says."""
    try:
        done = subprocess.run(
            argv, input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=WITHIN
        )
    except subprocess.TimeoutExpired:
        return 1, f"{argv[0]} does not answer within {WITHIN:g} s"
    except OSError as error:
        return 127, f"{argv[0]} cannot be run: {error.strerror}"
    return done.returncode, done.stdout.decode(errors="replace").strip()


def gpu_links() -> dict[str, list[str]]:
    """Kind of link -> the pairs of GPUs that have it (`NV18: [0-1, 0-2]`), by nvidia-smi topo."""
    if shutil.which("nvidia-smi") is None:
        return {}
    code, text = _answer("nvidia-smi", "topo", "-m")
    return parse_links(text.splitlines()) if code == 0 else {}


def parse_links(lines: Sequence[str]) -> dict[str, list[str]]:
    """The matrix of `nvidia-smi topo -m`: a row and a column for each GPU, X where they meet."""
    found: dict[str, list[str]] = {}
    for line in filter(str.strip, lines):
        row, *cells = line.split()
        if not row.startswith("GPU") or not row[3:].isdigit() or "X" not in cells:
            continue
        one = int(row[3:])
        for other, kind in enumerate(cells):
            if other < one:
                found.setdefault(kind, []).append(f"{other}-{one}")
    return found


def slurm() -> dict[str, Any]:
    """Whether munge and slurmctld answer on this host: None, or what is said against it."""
    code, credential = _answer("munge", "-n")
    if code == 0:
        code, said = _answer("unmunge", stdin=credential.encode())
        munge = None if code == 0 else _first(said)
    else:
        munge = _first(credential)
    code, said = _answer("scontrol", "ping")
    up = code == 0 and "UP" in said
    return {"munge": munge, "slurmctld": None if up else _first(said)}


def slurm_hosts() -> list[str]:
    """The hosts of this step of a job, in the order of their node ranks."""
    code, said = _answer("scontrol", "show", "hostnames", os.environ["SLURM_STEP_NODELIST"])
    return said.split() if code == 0 else []


def _first(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "it says nothing"
