"""`make ssh-lab`, then what a user of bare metal does: over SSH, to machines that have only Python.

The machines come up once for this file, and torch is installed on them once.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import yaml

from tests.conftest import Lab
from tests.deploy.test_tree import HOSTILE

pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

HOSTS = ["-t", "ssh-lab", "--nodes", "host[0-1]"]
SCRIPT = """
import os
import torch
import torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
os.makedirs("out", exist_ok=True)
with open("out/rank.txt", "w") as file:
    file.write(f"{os.environ['RANK']} of {total.item():g}")
"""


class Rehearsal(Lab):
    """`lab` in a project's folder, with the machines of `make ssh-lab` up."""

    def __init__(self, folder: Path) -> None:
        project = folder / "project"
        project.mkdir()
        super().__init__(project)
        self.state = folder / "state"

    def start(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[str]:
        """As `Lab`; these machines are nobody else's."""
        return super().start(*argv, env={**(env or {}), **self.env}, stdin=stdin)

    @property
    def env(self) -> dict[str, str]:
        """Where the topology of the machines and their keys are."""
        return {"XDG_STATE_HOME": str(self.state)}

    def topology(self, name: str, **ssh: object) -> str:
        """The topology of the machines with other options; its file, which is not deployed."""
        text = (self.state / "multinode-lab/ssh-lab/topology.yaml").read_text()
        data = yaml.safe_load(text)
        data["on"] = data.pop(True)  # as YAML 1.1 reads it
        data["nodes"] = data["nodes"][:2]
        data["ssh"] |= ssh
        file = self.state / f"{name}.yaml"
        file.write_text(yaml.safe_dump(data))
        return str(file)

    def on(self, node: str, script: str) -> str:
        """What a shell on a machine says, as the user that lab logs in as."""
        done = self("exec", "-t", "ssh-lab", node, "sh", "-c", script)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rehearsal]:
    rehearsal = Rehearsal(tmp_path_factory.mktemp("rehearsal"))
    module = [sys.executable, "-P", "-m", "lab.cli.ssh_lab"]
    try:
        subprocess.run(module, check=True, timeout=600, env={**os.environ, **rehearsal.env})
        yield rehearsal
    finally:
        rehearsal("down", "-t", "ssh-lab")
        rehearsal.end()


@pytest.fixture(scope="module")
def deployed(hosts: Rehearsal) -> Rehearsal:
    """A project is on the machines, and torch with it."""
    subprocess.run(["git", "init", "-q"], cwd=hosts.cwd, check=True)
    hosts.script(SCRIPT, "train.py")
    hosts.script("out/\nruns/\noutputs/\n", ".gitignore")
    for name in HOSTILE:
        hosts.script(name, f"odd/{name}")
    hosts.script("bytes", os.fsdecode(b"odd/no\xffutf8"))
    done = hosts("deploy", *HOSTS, timeout=1700)
    assert done.returncode == 0, done.stderr
    return hosts


def test_only_what_is_needed_travels(deployed: Rehearsal) -> None:
    again = json.loads(deployed("deploy", *HOSTS, "--json").stdout)
    assert (again["changed"], again["sent"]) == ([], 0)

    deployed.script("x = 1\n", "module.py")
    more = json.loads(deployed("deploy", *HOSTS, "--json").stdout)
    assert (more["changed"], more["sent"]) == (["host0", "host1"], 2 * len("x = 1\n"))


def test_names_of_any_kind_arrive(deployed: Rehearsal) -> None:
    program = "import os; print(sorted(map(repr, os.listdir(b'odd'))))"
    there = deployed.on("host1", f'python3 -c "{program}"')
    here = sorted(repr(os.fsencode(path.name)) for path in (deployed.cwd / "odd").iterdir())
    assert there == f"{here}\n"


def test_a_run_deploys_first_and_brings_back_what_it_is_asked_for(deployed: Rehearsal) -> None:
    deployed.script(SCRIPT.replace(" of ", " from "), "train.py")
    refused = deployed("run", *HOSTS, "--no-deploy", "train.py")
    assert refused.returncode == 1
    assert "host0, host1: the code there is not what is here" in refused.stderr

    done = deployed("run", *HOSTS, "--collect", "out", "train.py", timeout=300)
    assert done.returncode == 0, done.stderr
    run = deployed.runs()[-1]
    found = {node: (run / node / "out/rank.txt").read_text() for node in ("host0", "host1")}
    assert found == {"host0": "0 from 2", "host1": "1 from 2"}


def test_a_rollback_is_run_when_it_is_asked_for(deployed: Rehearsal) -> None:
    for text in ("print('first')\n", "print('second')\n"):
        deployed.script(text, "version.py")
        assert deployed("deploy", *HOSTS).returncode == 0
    back = deployed("deploy", *HOSTS, "--rollback")
    assert back.returncode == 0, back.stderr

    done = deployed("run", *HOSTS, "--no-deploy", "version.py", timeout=300)
    assert done.stdout.count("first") == 2, done.stderr
    done = deployed("run", *HOSTS, "version.py", timeout=300)
    assert done.stdout.count("second") == 2, done.stderr


def test_hosts_tell_what_they_are_and_answer_as_one(deployed: Rehearsal) -> None:
    done = deployed("hosts", *HOSTS, "--json")
    one, two = json.loads(done.stdout)
    assert (one["hostname"], two["hostname"]) == ("host0", "host1")
    assert one["os"].startswith("Debian GNU/Linux 12")
    assert one["torch"].startswith("2.")
    assert abs(one["clock_skew"]) <= one["clock_unsure"] + 0.001  # one kernel, one clock

    file = deployed.topology("two")
    same = deployed("exec", "-t", file, "--all", "sh", "-c", "whoami; cat module.py")
    assert same.stdout == "host[0-1]\n  trainer\n  x = 1\n"
    assert deployed.on("host0", "id -u") != "0\n"


def test_the_first_job_of_the_readme_trains_where_no_folder_is_shared(deployed: Rehearsal) -> None:
    done = deployed("run", *HOSTS, "-m", "lab.training.wine", "--epochs", "2", timeout=400)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1].split()
    assert last[:3] == ["[0", "host0]", "2"]


def test_the_proof_is_that_of_containers_bit_by_bit(deployed: Rehearsal) -> None:
    on_hosts = deployed("prove", *HOSTS, "--steps", "5", "--json", timeout=400)
    assert on_hosts.returncode == 0, on_hosts.stderr
    try:
        on_docker = deployed("prove", "-t", "pair", "--steps", "5", "--json", timeout=400)
    finally:
        deployed("down", "-t", "pair")
    assert on_docker.returncode == 0, on_docker.stderr

    one, other = json.loads(on_hosts.stdout), json.loads(on_docker.stdout)
    assert one["steps"] == other["steps"]
    # Which rank greets the other, and so receives a few bytes more, is chance; that they are near
    # the formula has been proven by each.
    del one["wire"]["measured"], other["wire"]["measured"]
    assert one["wire"] == other["wire"]
    assert (one["topology"], other["topology"]) == ("ssh-lab", "pair")


def test_another_python_is_refused(deployed: Rehearsal) -> None:
    done = deployed("deploy", "-t", "ssh-lab", "--nodes", "host0,host3")
    assert done.returncode == 1
    assert "host3 has Python 3.13" in done.stderr
    assert "host0 has 3.11" in done.stderr


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"python": "python9"}, "host0, host1: there is no python9: install Python"),
        ({"workdir": "/usr/lab"}, "/usr/lab: Permission denied: let its user write there"),
        ({"workdir": "/sys/lab"}, "/sys/lab: Read-only file system: let its user write there"),
        ({"workdir": "/dev/shm/lab"}, "its disk is full (it takes "),
        ({"workdir": "/proc/lab"}, "host0, host1: /proc/lab: No such file or directory"),
    ],
)
def test_a_host_that_cannot_take_it_says_why(
    deployed: Rehearsal, options: dict[str, object], reason: str
) -> None:
    done = deployed("deploy", "-t", deployed.topology("bad", **options))
    assert done.returncode == 1
    assert reason in done.stderr
    assert "Traceback" not in done.stderr


CUTS_THE_CONNECTION = """\
#!/bin/sh
exec python3 -X utf8 -c '
import os, pathlib, signal, sys
whole = pathlib.Path.rename
def cut(self, target):
    whole(self, target)
    if self.name == "partial":
        session = os.getppid()
        while b"sshd" not in pathlib.Path(f"/proc/{session}/cmdline").read_bytes():
            session = int(pathlib.Path(f"/proc/{session}/stat").read_text().split()[3])
        os.kill(session, signal.SIGKILL)
pathlib.Path.rename = cut
exec(sys.argv.pop())' "$4"
"""


def test_a_connection_that_is_cut_midway_is_repaired_by_the_next_deploy(
    deployed: Rehearsal,
) -> None:
    for name in "abc":
        deployed.script(name * 100_000, f"large-{name}")
    write = f"cat >~/cutting <<'END'\n{CUTS_THE_CONNECTION}END\nchmod +x ~/cutting"
    for host in ("host0", "host1"):
        deployed.on(host, write)
    cutting = deployed("deploy", "-t", deployed.topology("cut", python="~/cutting"), timeout=300)
    assert cutting.returncode == 1
    assert "lost" in cutting.stderr
    assert deployed.on("host0", "ls large-* 2>/dev/null || true") == ""  # the version before

    repaired = json.loads(deployed("deploy", *HOSTS, "--json").stdout)
    assert repaired["changed"] == ["host0", "host1"]
    assert repaired["sent"] == 2 * 200_000  # one of the three has come before
    assert deployed.on("host0", "wc -c <large-c") == "100000\n"
