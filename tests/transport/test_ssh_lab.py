"""`make ssh-lab`: machines that are what it says they are, and gone when they are to be."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from lab.topology import load_topology
from lab.transport.labs import find_labs
from lab.transport.ssh_lab import MACHINES, SshLab
from tests.conftest import Lab

pytestmark = pytest.mark.docker


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A user's folders of their own, so that a rehearsal that is up stays."""
    folder = tmp_path_factory.mktemp("user")
    return {"XDG_STATE_HOME": f"{folder}/state", "XDG_CONFIG_HOME": f"{folder}/config"}


@pytest.fixture(scope="module")
def machines(settings: Mapping[str, str]) -> Iterator[SshLab]:
    """All of them, up."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        rehearsal = SshLab()
        try:
            rehearsal.up(lambda _line: None)
            yield rehearsal
        finally:
            rehearsal.down(lambda _line: None)


def test_debian_python_and_a_plain_user_and_nothing_else(
    lab: Lab, machines: SshLab, settings: dict[str, str]
) -> None:
    torch = "python3 -c 'import torch' 2>&1 | tail -1"
    script = f"id -un; id -u; hostname; {torch}; ls -A ~; command -v pip"
    done = lab("exec", "-t", "ssh-lab", "host2", "sh", "-c", script, env=settings)
    user, uid, host, missing, *files = done.stdout.splitlines()
    assert (user, uid, host) == ("trainer", "1000", "host2")
    assert "No module named 'torch'" in missing
    assert not [name for name in files if name == "lab" or "pip" in name]


def test_slots_differ(machines: SshLab) -> None:
    topology = load_topology("ssh-lab")
    assert [node.slots for node in topology.nodes] == [1, 1, 2]
    assert topology.on == "ssh"


def test_secrets_are_this_users_alone_and_in_no_image(
    lab: Lab, machines: SshLab, settings: dict[str, str]
) -> None:
    for path in machines.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert stat.S_IMODE(machines.folder.stat().st_mode) == 0o700
    (found,) = find_labs(machines._client, machines.lab_id)
    image = machines._client.api.inspect_container(found.nodes[0].container_id)["Image"]
    listed = subprocess.run(
        ["docker", "run", "--rm", image, "sh", "-c", "ls -A /etc/ssh .ssh .sshd"],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "host_key" not in listed.stdout
    assert "authorized_keys" not in listed.stdout


def test_only_this_machine_gets_in(machines: SshLab) -> None:
    (found,) = find_labs(machines._client, machines.lab_id)
    for node in found.nodes:
        state = machines._client.api.inspect_container(node.container_id)
        bound = state["NetworkSettings"]["Ports"]
        assert {one["HostIp"] for ports in bound.values() for one in ports} == {"127.0.0.1"}
        assert state["Config"]["User"] == "trainer"


def test_another_python_minor_is_refused_before_anything_is_sent(
    lab: Lab, machines: SshLab, settings: dict[str, str]
) -> None:
    done = lab("up", "-t", "ssh-lab", "--nodes", "host[0-3]", env=settings)
    assert done.returncode == 1
    assert "host3 has Python 3.13" in done.stderr
    assert "host0 has 3.11" in done.stderr
    there = lab("exec", "-t", "ssh-lab", "host0", "sh", "-c", "ls ~/lab/envs", env=settings)
    assert there.returncode != 0, there.stdout


def test_up_again_changes_nothing(machines: SshLab) -> None:
    before = {path.name: path.read_bytes() for path in machines.folder.iterdir()}
    machines.up(lambda _line: None)
    assert {path.name: path.read_bytes() for path in machines.folder.iterdir()} == before


def test_down_leaves_nothing(lab: Lab, tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path / "state")}
    command = [sys.executable, "-P", "-m", "lab.cli.ssh_lab"]
    made = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    (folder,) = (tmp_path / "state" / "multinode-lab").iterdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", env["XDG_STATE_HOME"])
        rehearsal = SshLab()
    assert len(find_labs(rehearsal._client, rehearsal.lab_id)[0].nodes) == len(MACHINES)
    done = lab("down", "-t", "ssh-lab", env=env)
    assert done.returncode == 0, done.stderr
    assert not folder.exists()
    assert find_labs(rehearsal._client, rehearsal.lab_id) == []
    missing = lab("up", "-t", "ssh-lab", env=env)
    assert missing.returncode == 2
    assert "make ssh-lab" in missing.stderr
