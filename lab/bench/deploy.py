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
from lab.errors import LabError

UNCHANGED, ONE_FILE, LARGE = "unchanged", "one file changed", "a block of a large file changed"
LARGE_SIZE = 64 << 20


def bench_deploy(hosts: int, files: int, runs: int, progress: Progress) -> list[dict[str, Any]]:
    """Seconds of each tool from its start to its end, alternating; one round goes before.

    rsync is started for all hosts at once. It makes no versions, and does not read what is there.

    Args:
        hosts: how many, of this machine; each has a home of its own.
        files: of the folder, 8 KB each; one of 64 MB is beside them in the last case.
        runs: rounds that count.
        progress: is told how it goes.

    Raises:
        LabError: there is no sshd here, or a tool fails.
    """
    with _endpoints(hosts) as folder:
        small = _ways(folder / "small", folder / "ssh_config", hosts, files)
        large = _ways(folder / "large", folder / "ssh_config", hosts, files, LARGE_SIZE)
        cases = {UNCHANGED: small, ONE_FILE: small, LARGE: large}
        taken: dict[str, dict[str, list[tuple[float, float]]]] = {
            what: {way.name: [] for way in ways} for what, ways in cases.items()
        }
        for number in range(runs + 1):
            progress("warm-up" if number == 0 else f"round {number} of {runs}")
            for what, ways in cases.items():
                for way in ways:
                    assert way.cwd is not None
                    _change(way.cwd, what, number)
                    one = measured(way)
                    if number > 0:
                        taken[what][way.name].append(one)
        return [{"folder": what, **row} for what in cases for row in compared_to_best(taken[what])]


def _change(project: Path, what: str, number: int) -> None:
    if what == ONE_FILE:
        (project / "changes.py").write_text(f"ROUND = {number}\n")
    if what == LARGE:
        with (project / "model.bin").open("r+b") as file:
            file.seek(LARGE_SIZE // 2)
            file.write(number.to_bytes(8, "little"))


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


def _project(project: Path, files: int, large: int) -> Path:
    """A git repository with files that do not compress; of `large` bytes one of them, or none."""
    content = random.Random(0)  # noqa: S311 - any bytes will do
    for number in range(files):
        path = project / f"package{number % 20}" / f"file{number}.bin"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.randbytes(8192))
    (project / "changes.py").write_text("")
    if large:
        (project / "model.bin").write_bytes(content.randbytes(large))
    for argv in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *argv], cwd=project, check=True)
    return project


def _ways(folder: Path, config: Path, hosts: int, files: int, large: int = 0) -> list[Way]:
    """Each with a folder of its own, so that it finds what it left."""
    topology = folder / "hosts.yaml"
    # This Python has torch, so that no packages are sent.
    ssh = f"{{config: {config}, python: {sys.executable}}}"
    topology.parent.mkdir()
    topology.write_text(f"on: ssh\nnodes: node[0-{hosts - 1}]\nssh: {ssh}\n")
    lab = [sys.executable, "-P", "-m", "lab", "deploy", "-t", str(topology)]
    env = {"XDG_CONFIG_HOME": str(folder / "none")}

    def project(name: str) -> Path:
        return _project(folder / name / "project", files, large)

    ways = [Way("lab deploy", lab, env, cwd=project("lab"))]
    if shutil.which("rsync") is not None:
        if large:
            only_git = {**env, "PATH": _path_of(folder / "bin", "git")}
            ways.append(Way("lab deploy, no rsync", lab, only_git, cwd=project("plain")))
        rsync = ["rsync", "-a", "--delete", "--exclude=.git", "-e", f"ssh -F {config}", "./"]
        each = ["xargs", "-P", str(hosts), "-I{}", *rsync, f"{{}}:{folder}/rsynced/{{}}/"]
        (folder / "rsynced").mkdir()
        names = "".join(f"node{number}\n" for number in range(hosts))
        ways.append(Way("xargs rsync", each, {}, names, project("rsync")))
    return ways


def _path_of(folder: Path, program: str) -> str:
    """A PATH with one program."""
    found = shutil.which(program)
    if found is None:
        raise LabError(f"there is no {program}: install it")
    folder.mkdir()
    (folder / program).symlink_to(found)
    return str(folder)
