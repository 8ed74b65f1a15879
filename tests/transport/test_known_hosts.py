"""Files of known hosts: read as ssh does, written by `lab trust` alone."""

from base64 import b64decode
from pathlib import Path

import paramiko
import pytest

from lab.errors import LabError
from lab.transport.known_hosts import KnownHosts, add_key, entry_name
from lab.transport.ssh_keys import KeyPair


def key_of(pair: KeyPair) -> paramiko.PKey:
    kind, text = pair.public.split()
    return paramiko.PKey.from_type_string(kind, b64decode(text))


@pytest.fixture
def pairs() -> list[KeyPair]:
    return [KeyPair.new() for _ in range(3)]


def test_the_first_file_comes_first_and_a_missing_one_is_empty(
    tmp_path: Path, pairs: list[KeyPair]
) -> None:
    for number, pair in enumerate(pairs[:2]):
        (tmp_path / str(number)).write_text(f"gpu1 {pair.public}\n")
    known = KnownHosts([tmp_path / "1", tmp_path / "none", tmp_path / "0"])
    assert [path.name for path, _ in known.keys("gpu1")] == ["1", "0"]
    assert list(known.keys("gpu2")) == []


def test_a_hashed_name_and_a_port_are_found(tmp_path: Path, pairs: list[KeyPair]) -> None:
    hashed = paramiko.HostKeys.hash_host("[gpu1]:2222")
    (tmp_path / "known").write_text(f"# mine\n\n{hashed} {pairs[0].public}\n")
    known = KnownHosts([tmp_path / "known"])
    assert len(list(known.keys(entry_name("gpu1", 2222)))) == 1
    assert list(known.keys(entry_name("gpu1", 22))) == []


def test_a_key_that_is_added_replaces_the_hosts_own_only(
    tmp_path: Path, pairs: list[KeyPair]
) -> None:
    path = tmp_path / "new" / "known_hosts"
    keys = [key_of(pair) for pair in pairs]
    add_key(path, "gpu1", keys[0])
    add_key(path, "gpu2", keys[1])
    add_key(path, "gpu1", keys[2])
    known = KnownHosts([path])
    assert [key for _, key in known.keys("gpu1")] == [keys[2]]
    assert [key for _, key in known.keys("gpu2")] == [keys[1]]
    assert known.file_of("gpu2", keys[1]) == path
    assert known.file_of("gpu2", keys[0]) is None


@pytest.mark.parametrize(
    "line", ["gpu1 ssh-ed25519 !!!not-base64", "|1|salt {key}", "|1|a|b {key}"]
)
def test_a_broken_file_is_named(line: str, tmp_path: Path, pairs: list[KeyPair]) -> None:
    (tmp_path / "known").write_text(f"{line.format(key=pairs[0].public)}\n")
    with pytest.raises(LabError, match=r"known.*cannot be read"):
        KnownHosts([tmp_path / "known"])


def test_markers(tmp_path: Path, pairs: list[KeyPair]) -> None:
    """A revoked key is nobody's; what an authority signs is not known, and no error either."""
    good, bad = pairs[0], pairs[1]
    path = tmp_path / "known"
    path.write_text(
        f"@cert-authority *.example {good.public}\n@revoked * {bad.public}\n"
        f"host {good.public}\nhost {bad.public}\n"
    )
    found = [key for _, key in KnownHosts([path]).keys("host")]
    assert [f"{key.get_name()} {key.get_base64()}" for key in found] == [good.public]
    assert not list(KnownHosts([path]).keys("a.example"))


def test_a_file_that_changes_is_read_again(tmp_path: Path, pairs: list[KeyPair]) -> None:
    path = tmp_path / "known"
    add_key(path, "gpu1", key_of(pairs[0]))
    assert [key for _, key in KnownHosts([path]).keys("gpu1")] == [key_of(pairs[0])]
    add_key(path, "gpu1", key_of(pairs[1]))
    assert [key for _, key in KnownHosts([path]).keys("gpu1")] == [key_of(pairs[1])]
