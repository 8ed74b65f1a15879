"""From the command to a first all-reduce: hosts over SSH beside containers by the Docker engine.

Both are warm containers of this machine with the same nodes and ranks; what differs is the
transport, and that hosts are asked whether they have the present code.
"""

from functools import partial
from pathlib import Path
from typing import Any

from lab.bench.startup import compare_starts, lab_run
from lab.channel import Progress
from lab.topology import SSH_LAB, load_topology
from lab.transport import transport_for

DOCKER, SSH = "lab run on docker", "lab run on ssh"


def bench_ssh_start(runs: int, progress: Progress) -> list[dict[str, Any]]:
    """Seconds of each, alternating, `runs` times each, as `lab.bench.startup` counts them.

    Raises:
        LabError: ssh-lab is not up, or a run failed.
    """
    hosts = load_topology(SSH_LAB)
    containers = load_topology(SSH_LAB, on="docker")
    engine = transport_for(containers, Path.cwd())
    try:
        ways = {SSH: partial(lab_run, hosts), DOCKER: partial(lab_run, containers)}
        return compare_starts(ways, DOCKER, runs, progress)
    finally:
        engine.down(progress)
