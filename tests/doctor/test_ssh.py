"""The doctor on hosts behind a real SSH server, to which nothing has been deployed."""

import json
from collections.abc import Iterator

import pytest

from tests.conftest import Lab
from tests.sshd import Sshd, SshPlace


@pytest.fixture
def place(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshPlace]:
    """A host that is known and let in."""
    server = Sshd(tmp_path_factory.mktemp("sshd")).start()
    try:
        yield SshPlace(tmp_path_factory.mktemp("place") / "here", server)
    finally:
        server.stop()


def test_a_host_that_is_well_and_one_that_cannot_be_reached(lab: Lab, place: SshPlace) -> None:
    place.ssh_config(
        f"Host h0\n    HostName 127.0.0.1\n    Port {place.server.port}\n"
        "Host h1\n    HostName 127.0.0.1\n    Port 1\n"
    )
    topology = place.topology(port=None)
    nodes = "nodes: [{name: h0}, {name: h1}]\n"
    lines = [nodes if line.startswith("nodes:") else line for line in topology.splitlines(True)]
    lab.script("".join(lines), "lab.yaml")

    done = lab("doctor", "--json", env=place.env, timeout=300)

    report = json.loads(done.stdout)
    bad = [check for check in report["checks"] if check["status"] != "pass"]
    assert done.returncode == 1, done.stderr
    assert [(check["name"], check["nodes"]) for check in bad] == [
        ("answers", ["h1"]),
        ("roll-call", ["h1"]),
    ]
    assert "127.0.0.1" in bad[0]["found"]
    assert bad[1]["found"] == "h1 did not come; h0 went on without"
    found = {check["name"]: check["found"] for check in report["checks"]}
    assert found["code"] == "nothing is deployed yet; lab run sends it"
    assert not place.host.exists()
