"""Keys that need a passphrase: asked for once, on a terminal only."""

from pathlib import Path

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
