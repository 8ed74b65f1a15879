"""`lab deploy` to SSH endpoints of this machine that have the folder already, beside rsync."""

import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.bench.commands import Way, compared_to_best, measured
from lab.bench.sshd import Sshd, write_client
from lab.channel import Progress

UNCHANGED, ONE_FILE = "unchanged", "one file changed"


def bench_deploy(hosts: int, files: int, runs: int, progress: Progress) -> list[dict[str, Any]]:
    """Seconds of each tool from its start to its end, alternating; one round goes before.

    rsync is started for all hosts at once. It makes no versions, and does not read what is there.

    Args:
        hosts: how many, of this machine; each has a home of its own.
        files: of the folder, 8 KB each.
        runs: rounds that count.
        progress: is told how it goes.

    Raises:
        LabError: there is no sshd here, or a tool fails.
    """
    with _endpoints(hosts) as folder:
        ways = _ways(folder, hosts, files)
        cases: dict[str, dict[str, list[tuple[float, float]]]] = {
            what: {way.name: [] for way in ways} for what in (UNCHANGED, ONE_FILE)
        }
        for number in range(runs + 1):
            progress("warm-up" if number == 0 else f"round {number} of {runs}")
            for what, taken in cases.items():
                for way in ways:
                    if what == ONE_FILE:
                        assert way.cwd is not None
                        (way.cwd / "changes.py").write_text(f"ROUND = {number}\n")
                    one = measured(way)
                    if number > 0:
                        taken[way.name].append(one)
        return [
            {"folder": what, **row}
            for what, taken in cases.items()
            for row in compared_to_best(taken)
        ]


@contextmanager
def _endpoints(hosts: int) -> Iterator[Path]:
    """A folder with an `ssh_config` for hosts that are up."""
    with tempfile.TemporaryDirectory(prefix="multinode-lab-") as name:
        folder = Path(name)
        server = Sshd(folder, hosts, own_homes=True).start()
        try:
            write_client(folder, [server])
            yield folder
        finally:
            server.stop()


def _project(project: Path, files: int) -> Path:
    """A git repository with files that do not compress."""
    content = random.Random(0)  # noqa: S311 - any bytes will do
    for number in range(files):
        path = project / f"package{number % 20}" / f"file{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.randbytes(8192))
    (project / "changes.py").write_text("")
    for argv in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *argv], cwd=project, check=True)
    return project


def _ways(folder: Path, hosts: int, files: int) -> list[Way]:
    """Each with a folder of its own, so that it finds what it left."""
    config = folder / "ssh_config"
    topology = folder / "hosts.yaml"
    # This Python has torch, so that no packages are sent.
    ssh = f"{{config: {config}, python: {sys.executable}}}"
    topology.write_text(f"on: ssh\nnodes: node[0-{hosts - 1}]\nssh: {ssh}\n")
    lab = [sys.executable, "-P", "-m", "lab", "deploy", "-t", str(topology)]
    own, theirs = folder / "lab" / "project", folder / "rsync" / "project"
    none = {"XDG_CONFIG_HOME": str(folder / "none")}
    ways = [Way("lab deploy", lab, none, cwd=_project(own, files))]
    if shutil.which("rsync") is not None:
        rsync = ["rsync", "-a", "--delete", "--exclude=.git", "-e", f"ssh -F {config}", "./"]
        each = ["xargs", "-P", str(hosts), "-I{}", *rsync, f"{{}}:{folder}/rsynced/{{}}/"]
        (folder / "rsynced").mkdir()
        names = "".join(f"node{number}\n" for number in range(hosts))
        ways.append(Way("xargs rsync", each, {}, names, _project(theirs, files)))
    return ways
