"""`lab exec --all true` on many SSH endpoints of this machine, beside the tools for that."""

import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from lab.bench.sshd import Sshd
from lab.channel import Progress
from lab.errors import LabError

HOST = """\
Host node{number}
    HostName 127.0.0.1
    Port {port}
    IdentityFile {key}
    UserKnownHostsFile {folder}/known_hosts

"""
PORTS = 16
"""Of one server: as many as it can take (sshd.c, MAX_LISTEN_SOCKS)."""
PARALLEL = "64"
"""How many connections the others may make at one time; lab's own bound is 64, too."""


class Way(NamedTuple):
    """One tool."""

    name: str
    argv: Sequence[str]
    env: dict[str, str]
    stdin: str = ""


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
            servers.append(Sshd(own, PORTS).start())
            ending.callback(servers[-1].stop)
        endpoints = [(server, port) for server in servers for port in server.ports]
        hosts = [
            HOST.format(number=number, port=port, key=server.identity, folder=folder)
            for number, (server, port) in enumerate(endpoints)
        ]
        (folder / "ssh_config").write_text("".join(hosts))
        (folder / "known_hosts").write_text("".join(map(Sshd.known_lines, servers)))
        for size in sizes:
            rows += _of_size(folder, size, runs, progress)
    return rows


def _of_size(folder: Path, size: int, runs: int, progress: Progress) -> list[dict[str, Any]]:
    ways = _ways(folder, size)
    seconds: dict[str, list[float]] = {way.name: [] for way in ways}
    cpu: dict[str, list[float]] = {way.name: [] for way in ways}
    for number in range(runs + 1):
        progress(f"{size} hosts, {'warm-up' if number == 0 else f'round {number} of {runs}'}")
        for way in ways:
            taken, computed = _measured(way)
            if number > 0:
                seconds[way.name].append(taken)
                cpu[way.name].append(computed)
    best = min(statistics.median(seconds[way.name]) for way in ways[1:])
    return [
        {
            "hosts": size,
            "way": way,
            "median": statistics.median(values),
            "min": min(values),
            "max": max(values),
            "of the best other": statistics.median(values) / best,
            "cpu": statistics.median(cpu[way]),
            "all": values,
        }
        for way, values in seconds.items()
    ]


def _measured(way: Way) -> tuple[float, float]:
    """Seconds from its start to its end, and of computation on this side."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.monotonic()
    done = subprocess.run(
        way.argv,
        input=way.stdin,
        env={**os.environ, **way.env},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise LabError(f"{way.name} failed: {done.stderr.strip() or done.stdout.strip()}")
    taken = time.monotonic() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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
