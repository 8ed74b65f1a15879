"""`lab trust`: what it shows, and what it takes for trusted."""

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.transport.ssh_keys import KeyPair
from tests.conftest import Lab
from tests.sshd import Sshd, SshPlace


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    """A server that none of the tests changes."""
    running = Sshd(tmp_path_factory.mktemp("sshd")).start()
    try:
        yield running
    finally:
        running.stop()


@pytest.fixture
def place(tmp_path: Path, server: Sshd) -> SshPlace:
    """A host that is not known yet."""
    made = SshPlace(tmp_path, server)
    made.known.unlink()
    (tmp_path / "lab.yaml").write_text(made.topology())
    return made


def test_nobody_to_ask_means_no(lab: Lab, place: SshPlace) -> None:
    done = lab("trust", "h0", env=place.env)
    assert done.returncode == 2
    found = re.search(r"SHA256:[\w+/]{43}", done.stdout)
    assert found is not None
    assert f"lab trust --fingerprint {found[0]} h0" in done.stderr
    assert not place.known.exists()


def test_the_right_fingerprint_is_added_once(lab: Lab, place: SshPlace) -> None:
    shown = lab("trust", "h0", env=place.env).stdout
    (fingerprint,) = set(re.findall(r"SHA256:[\w+/]{43}", shown))
    wrong = lab("trust", "--fingerprint", "SHA256:" + "A" * 43, "h0", env=place.env)
    assert wrong.returncode == 1
    assert "NOT ADDED" in wrong.stderr
    assert not place.known.exists()
    done = lab("trust", "--fingerprint", fingerprint, "h0", env=place.env)
    assert done.returncode == 0, done.stderr
    assert place.known.read_text() == place.server.known_lines()
    again = lab("trust", "h0", env=place.env)
    assert again.returncode == 0
    assert "known already" in again.stdout
    assert lab("exec", "h0", "true", env=place.env).returncode == 0


@pytest.mark.parametrize("host", ["127.0.0.1:{port}", "me@127.0.0.1:{port}", "jump"])
def test_a_host_that_is_no_node(host: str, lab: Lab, place: SshPlace) -> None:
    port = place.server.port
    place.ssh_config(f"Host jump\n    HostName 127.0.0.1\n    Port {port}\n")
    done = lab("trust", "--yes", host.format(port=port), env=place.env)
    assert done.returncode == 0, done.stderr
    assert place.known.read_text() == place.server.known_lines()


def test_another_key_needs_more_than_yes(lab: Lab, place: SshPlace) -> None:
    other = f"[127.0.0.1]:{place.server.port} {KeyPair.new().public}\n"
    place.known.write_text(other)
    done = lab("trust", "--yes", "h0", env=place.env)
    assert done.returncode == 2
    assert "HAS ANOTHER KEY FOR IT" in done.stdout
    assert "lab trust --replace" in done.stderr
    assert place.known.read_text() == other
    replaced = lab("trust", "--yes", "--replace", "h0", env=place.env)
    assert replaced.returncode == 0, replaced.stderr
    assert place.known.read_text() == place.server.known_lines()


def test_the_other_key_in_sshs_own_file_is_named_with_how_to_take_it_out(
    lab: Lab, place: SshPlace
) -> None:
    own = place.folder / "own_known_hosts"
    own.write_text(f"[127.0.0.1]:{place.server.port} {KeyPair.new().public}\n")
    place.ssh_config(f"Host *\n    UserKnownHostsFile {own}\n")
    done = lab("trust", "--yes", "--replace", "h0", env=place.env)
    assert done.returncode == 0, done.stderr
    command = re.search(r"ssh-keygen -R .*", done.stdout)
    assert command is not None
    subprocess.run(shlex.split(command[0]), check=True, capture_output=True)
    assert own.read_text() == ""


def test_a_topology_without_hosts(lab: Lab, place: SshPlace) -> None:
    done = lab("trust", "-t", "quad", "node0", env=place.env)
    assert done.returncode == 2
    assert "only hosts have keys" in done.stderr
