"""A real SSH server for the tests of this folder."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sshd import Sshd, SshPlace


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[Sshd]:
    """A server on a loopback port."""
    folder = tmp_path / "sshd"
    folder.mkdir()
    server = Sshd(folder).start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def place(tmp_path: Path, sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> SshPlace:
    """A host behind that server, known and let in; this process has its settings."""
    made = SshPlace(tmp_path, sshd)
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    return made
