"""Keys that need a passphrase: asked for once, on a terminal only, and not if an agent has them."""

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lab.transport import ssh_auth

PASSPHRASE = "open sesame"


@pytest.fixture
def encrypted(tmp_path: Path) -> Path:
    """A key file that opens with the passphrase."""
    path = tmp_path / "id_ed25519"
    encryption = form.BestAvailableEncryption(PASSPHRASE.encode())
    formats = (form.Encoding.PEM, form.PrivateFormat.OpenSSH)
    path.write_bytes(Ed25519PrivateKey.generate().private_bytes(*formats, encryption))
    return path


def test_without_a_terminal_it_is_passed_over(
    encrypted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", None)
    assert ssh_auth.read_key(encrypted) is None


@pytest.mark.parametrize(("typed", "opens"), [(PASSPHRASE, True), ("wrong", False)])
def test_on_a_terminal_it_is_asked_for_once(
    typed: str, opens: bool, encrypted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return typed

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr(ssh_auth, "getpass", answer)
    assert (ssh_auth.read_key(encrypted) is not None) == opens
    assert (ssh_auth.read_key(encrypted) is not None) == opens
    assert asked == [f"passphrase of {encrypted}: "]


def test_what_is_no_key_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no key")
    assert ssh_auth.read_key(tmp_path / "text") is None
    assert ssh_auth.read_key(tmp_path / "missing") is None


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A real one, which has the key `id` in this folder; the file itself is encrypted."""
    key, socket = tmp_path / "id", tmp_path / "agent"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    with subprocess.Popen(["ssh-agent", "-D", "-a", socket], stdout=subprocess.DEVNULL) as process:
        try:
            give_up = time.monotonic() + 60
            while not socket.exists():
                assert time.monotonic() < give_up
                time.sleep(0.02)
            subprocess.run(["ssh-add", "-q", key], check=True)
            subprocess.run(["ssh-keygen", "-q", "-p", "-N", PASSPHRASE, "-f", key], check=True)
            yield
        finally:
            process.terminate()


@pytest.mark.parametrize("only_files", ["yes", "no"])
@pytest.mark.usefixtures("agent")
def test_a_key_that_the_agent_has_is_not_opened(
    only_files: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    monkeypatch.setattr(ssh_auth, "read_key", read.append)
    config = {"identityfile": [str(tmp_path / "id")], "identitiesonly": only_files}
    fabric = SimpleNamespace(authentication=SimpleNamespace(identities=[]))
    sources = list(ssh_auth.SshAuth(config, fabric, "somebody")._key_sources())
    assert len(sources) == 1
    assert read == []


@pytest.mark.usefixtures("agent")
def test_of_an_agent_only_the_files_named_are_used_where_ssh_is_told_so(
    encrypted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []
    monkeypatch.setattr(ssh_auth, "read_key", read.append)
    config = {"identityfile": [str(encrypted)], "identitiesonly": "yes"}
    fabric = SimpleNamespace(authentication=SimpleNamespace(identities=[]))
    assert list(ssh_auth.SshAuth(config, fabric, "somebody")._key_sources()) == []
    assert read == [encrypted]
