"""Key pairs that are made here, for machines that are made here."""

import os
from pathlib import Path
from typing import NamedTuple


class KeyPair(NamedTuple):
    """An Ed25519 key as OpenSSH writes it."""

    private: bytes
    public: str

    @classmethod
    def new(cls) -> "KeyPair":
        """A new one."""
        from cryptography.hazmat.primitives import serialization as form
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        key = Ed25519PrivateKey.generate()
        private = key.private_bytes(
            form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption()
        )
        public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
        return cls(private, public.decode())


def write_private(path: Path, data: bytes) -> None:
    """Write a file for its owner's eyes alone, as ssh wants its keys."""
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
