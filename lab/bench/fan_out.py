"""`lab exec --all true` on many SSH endpoints of this machine, beside the tools for that."""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from lab.bench.commands import Way, compared_to_best, measured
from lab.bench.sshd import PORTS, Sshd, write_client
from lab.channel import Progress

PARALLEL = "64"
"""How many connections the others may make at one time; lab's own bound is 64, too."""


def bench_fan_out(sizes: Sequence[int], runs: int, progress: Progress) -> list[dict[str, Any]]:
    """Seconds of each tool from its start to its end, alternating; one round goes before.

    Raises:
        LabError: there is no sshd here, or a tool fails.
    """
    rows = []
    with ExitStack() as ending:
        name = ending.enter_context(tempfile.TemporaryDirectory(prefix="multinode-lab-"))
        folder = Path(name)
        servers: list[Sshd] = []
        while len(servers) * PORTS < max(sizes):
            own = folder / str(len(servers))
            own.mkdir()
            servers.append(Sshd(own, PORTS, own_homes=True).start())
            ending.callback(servers[-1].stop)
        write_client(folder, servers)
        for size in sizes:
            rows += _of_size(folder, size, runs, progress)
    return rows


def _of_size(folder: Path, size: int, runs: int, progress: Progress) -> list[dict[str, Any]]:
    ways = _ways(folder, size)
    taken: dict[str, list[tuple[float, float]]] = {way.name: [] for way in ways}
    for number in range(runs + 1):
        progress(f"{size} hosts, {'warm-up' if number == 0 else f'round {number} of {runs}'}")
        for way in ways:
            one = measured(way)
            if number > 0:
                taken[way.name].append(one)
    return [{"hosts": size, **row} for row in compared_to_best(taken)]


def _ways(folder: Path, size: int) -> list[Way]:
    """Lab first, then what this machine has of the others."""
    config, nodes = folder / "ssh_config", f"node[0-{size - 1}]"
    topology = folder / f"fan{size}.yaml"
    topology.write_text(f"on: ssh\nnodes: {nodes}\nssh: {{config: {config}}}\n")
    lab = [sys.executable, "-P", "-m", "lab", "exec", "-t", str(topology), "--all", "true"]
    names = "".join(f"node{number}\n" for number in range(size))
    ssh = ["xargs", "-P", PARALLEL, "-I{}", "ssh", "-F", str(config), "{}", "true"]
    clush = [sys.executable, "-m", "ClusterShell.CLI.Clush", "-f", PARALLEL, "-o", f"-F {config}"]
    ways = [
        Way("lab exec --all", lab, {"XDG_CONFIG_HOME": str(folder / "none")}),
        Way("xargs ssh", ssh, {}, names),
        Way("clush", [*clush, "-w", nodes, "true"], {}),
    ]
    if shutil.which("pdsh") is not None:
        pdsh = ["pdsh", "-R", "ssh", "-f", PARALLEL, "-w", nodes, "true"]
        ways.append(Way("pdsh", pdsh, {"PDSH_SSH_ARGS_APPEND": f"-F {config}"}))
    return ways
