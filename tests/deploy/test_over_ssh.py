"""`lab deploy` over real SSH to hosts with homes of their own; packages are this Python's."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.bench.sshd import free_ports, write_client
from lab.deploy.host.files import WORTH
from lab.deploy.tree import LARGE
from tests.conftest import Lab
from tests.sshd import Sshd


class Room(Lab):
    """`lab` in a project's folder, and two hosts; a third one, `gone`, is down."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "project")
        self.folder = folder
        for name in ("project", "sshd"):
            (folder / name).mkdir()
        self.server = Sshd(folder / "sshd", 2, own_homes=True).start()
        write_client(folder, [self.server])
        config = folder / "ssh_config"
        with config.open("a") as file:
            file.write(f"Host gone\n    HostName 127.0.0.1\n    Port {free_ports(1)[0]}\n")
        self._ssh = f"{{config: {config}, python: {sys.executable}}}"

    def deploy(self, nodes: str) -> tuple[int, str]:
        """To these nodes: the exit code, and what is said."""
        file = self.folder / "hosts.yaml"
        file.write_text(f"on: ssh\nnodes: [{nodes}]\nssh: {self._ssh}\n")
        env = {"XDG_CONFIG_HOME": str(self.folder / "none"), "SSH_AUTH_SOCK": ""}
        done = self("deploy", "-t", str(file), env=env, timeout=250)
        return done.returncode, done.stderr

    def code(self, node: int) -> Path:
        """What is in use on a host."""
        (found,) = (self.folder / "sshd" / f"home{node}" / "lab").glob("project-*/current")
        return found / "code"


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    made = Room(tmp_path)
    try:
        yield made
    finally:
        made.end()
        made.server.stop()


def test_where_one_host_is_down_the_others_stay_as_they_are(room: Room) -> None:
    room.script("1", "version")
    assert room.deploy("node0, node1")[0] == 0

    room.script("2", "version")
    code, said = room.deploy("node0, gone, node1")

    assert code == 1
    (error,) = (line for line in said.splitlines() if line.startswith("lab: error"))
    assert error.startswith("lab: error: gone: no connection to ")
    assert "Connection refused: is the host up" in error
    assert [(room.code(node) / "version").read_text() for node in (0, 1)] == ["1", "1"]


def test_what_leads_out_and_what_is_large_is_warned_of_and_arrives(room: Room) -> None:
    outside = room.folder / "secret"
    outside.write_text("s")
    (room.cwd / "out").symlink_to("../secret")
    with (room.cwd / "model.bin").open("wb") as file:
        file.truncate(LARGE)

    code, said = room.deploy("node0")

    assert code == 0, said
    warnings = [line for line in said.splitlines() if line.startswith("lab: warning")]
    assert [line.split()[2] for line in warnings] == ["model.bin", "out"]
    assert os.readlink(room.code(0) / "out") == "../secret"  # noqa: PTH115 - as it stands there
    assert (room.code(0) / "model.bin").stat().st_size == LARGE


def test_of_a_large_file_the_difference_is_sent_over_the_same_connection(room: Room) -> None:
    content = bytearray(os.urandom(2 * WORTH))
    (room.cwd / "model.bin").write_bytes(content)
    assert room.deploy("node0")[0] == 0
    content[WORTH] ^= 1
    (room.cwd / "model.bin").write_bytes(content)

    code, said = room.deploy("node0")

    assert code == 0, said
    assert (room.code(0) / "model.bin").read_bytes() == content
    if shutil.which("rsync") or os.environ.get("CI") == "true":
        assert "updating large files" in said
        assert "sending" not in said
