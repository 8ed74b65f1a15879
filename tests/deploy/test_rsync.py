"""Large files of which little has changed: rsync brings the difference where both ends have it."""

import hashlib
import os
import random
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import psutil
import pytest

from lab.deploy.deployment import deploy
from lab.deploy.host.files import WORTH
from lab.errors import LabError
from lab.topology import Node
from lab.transport.local import LocalChannel
from tests.deploy.hosts import Hosts

CHANGE = b"changed"
SIZE = 2 * WORTH

pytestmark = pytest.mark.skipif(
    shutil.which("rsync") is None and os.environ.get("CI") != "true", reason="no rsync"
)


@pytest.fixture
def hosts(tmp_path: Path, environments: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    """Two, with a large file deployed to them."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    hosts = Hosts(tmp_path, environments)
    (hosts.project / "model.bin").write_bytes(random.Random(0).randbytes(SIZE))
    hosts.write(small="1")
    hosts.deploy()
    return hosts


def change(hosts: Hosts, name: str = "model.bin") -> bytes:
    """Write into the middle of a file; what is in it now."""
    path = hosts.project / name
    content = bytearray(path.read_bytes())
    content[WORTH : WORTH + len(CHANGE)] = CHANGE
    path.write_bytes(content)
    return bytes(content)


def in_use(hosts: Hosts, name: str = "model.bin") -> list[bytes]:
    return [
        (hosts.there(node.name) / "current" / "code" / name).read_bytes()
        for node in hosts.topology.nodes
    ]


def check_nothing_is_left(hosts: Hosts) -> None:
    for node in hosts.topology.nodes:
        assert list((hosts.there(node.name) / "blobs").iterdir()) == []
    assert list(hosts.folder.glob("multinode-lab-*")) == []
    check_nothing_runs()


def check_nothing_runs() -> None:
    children = psutil.Process().children(recursive=True)
    psutil.wait_procs(children, timeout=5)  # a relay ends when its rsync has
    assert not [child for child in children if child.is_running() and _is_ours(child)]


def _is_ours(process: psutil.Process) -> bool:
    try:
        return any("rsync" in word for word in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def test_only_the_difference_of_a_large_file_is_sent(hosts: Hosts) -> None:
    before = in_use(hosts)
    content = change(hosts)
    hosts.write(small="22")

    outcome = hosts.deploy()

    assert in_use(hosts) == [content] * 2
    assert 2 * len(CHANGE) < outcome.sent < 2 * SIZE / 100
    assert ("node0", "updating large files") in hosts.watched.steps
    hosts.roll_back()  # rsync has not written into the version before
    assert in_use(hosts) == before
    check_nothing_is_left(hosts)


def test_a_file_under_two_names_and_one_that_has_grown(hosts: Hosts) -> None:
    content = change(hosts)
    for name in ("copy.bin", "-e sh -c 'exit 1'.bin"):
        (hosts.project / name).write_bytes(content)
    hosts.deploy()
    grown = content + CHANGE
    (hosts.project / "copy.bin").write_bytes(grown)

    outcome = hosts.deploy()

    assert outcome.sent < SIZE / 50
    assert in_use(hosts, "copy.bin") == [grown] * 2
    assert in_use(hosts) == [content] * 2


def test_what_was_a_link_or_a_folder_or_small_is_sent_whole(hosts: Hosts) -> None:
    content = (hosts.project / "model.bin").read_bytes()
    (hosts.project / "link").symlink_to("model.bin")
    (hosts.project / "folder").mkdir()
    hosts.write(**{"folder/file": "1"})
    hosts.deploy()
    (hosts.project / "link").unlink()
    shutil.rmtree(hosts.project / "folder")
    new = [content[:-number] for number in (1, 2, 3)]
    for name, bytes_ in zip(("link", "folder", "small"), new, strict=True):
        (hosts.project / name).write_bytes(bytes_)

    outcome = hosts.deploy()

    assert outcome.sent == 2 * sum(map(len, new))
    for name, bytes_ in zip(("link", "folder", "small"), new, strict=True):
        assert in_use(hosts, name) == [bytes_] * 2
    assert in_use(hosts) == [content] * 2


def path_with(folder: Path, rsync: str | None) -> str:
    """A PATH on which `rsync` is this script, or is not."""
    folder.mkdir()
    for name in ("git", "sh", "sleep", "cat", "uname"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    if rsync is not None:
        (folder / "rsync").write_text(f"#!/bin/sh\n{rsync}\n")
        (folder / "rsync").chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("end", ["here", "there"])
@pytest.mark.parametrize(
    "rsync", [None, "exit 1", "echo 'not what rsync says'", "cat", "kill -9 $$"]
)
def test_without_rsync_at_one_end_or_with_a_broken_one_it_is_sent_whole(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch, end: str, rsync: str | None
) -> None:
    path = path_with(hosts.folder / "bin", rsync)
    if end == "there":
        hosts.env["PATH"] = path
    else:
        hosts.env["PATH"] = os.environ["PATH"]
        monkeypatch.setenv("PATH", path)
    content = change(hosts)

    outcome = hosts.deploy()

    assert in_use(hosts) == [content] * 2
    assert outcome.sent >= 2 * SIZE
    check_nothing_is_left(hosts)


def test_a_file_that_changes_meanwhile_is_named(hosts: Hosts) -> None:
    change(hosts)
    plan = hosts.plan()
    (hosts.project / "model.bin").write_bytes(b"less")
    with pytest.raises(LabError, match=r"model\.bin changed while it was sent: deploy again"):
        deploy(plan, hosts.start, hosts.watched)
    hosts.deploy()
    assert in_use(hosts) == [b"less"] * 2


def test_an_rsync_that_ends_in_the_middle_does_no_harm(hosts: Hosts) -> None:
    content = change(hosts)
    hosts.env["PATH"] = path_with(hosts.folder / "bin", "exec sleep 1000")
    start = hosts.start

    def ending(node: Node, argv: list[str]) -> LocalChannel:
        channel = start(node, argv)
        if argv[0] == "rsync":
            threading.Timer(0.5, channel.close).start()
        return channel

    hosts.start = ending  # type: ignore[method-assign]
    hosts.deploy()
    assert in_use(hosts) == [content] * 2
    check_nothing_is_left(hosts)


def test_ctrl_c_does_not_wait_for_rsync(hosts: Hosts) -> None:
    change(hosts)
    hosts.env["PATH"] = path_with(hosts.folder / "bin", "exec sleep 1000")
    start = hosts.start
    channels: list[LocalChannel] = []

    def interrupting(node: Node, argv: list[str]) -> LocalChannel:
        channel = start(node, argv)
        if argv[0] == "rsync":
            channels.append(channel)
        if len(channels) == 2:
            threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        return channel

    hosts.start = interrupting  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        hosts.deploy()
    for channel in channels:  # over SSH these end with the connection
        channel.close()
    del hosts.env["PATH"]
    check_nothing_runs()


def test_what_a_deploy_that_was_cut_off_had_made_is_not_sent_again(hosts: Hosts) -> None:
    content = change(hosts)
    for node in hosts.topology.nodes:
        older = hosts.there(node.name) / "blobs" / "older"
        older.mkdir()
        (older / hashlib.sha256(content).hexdigest()).write_bytes(content)
        (older / ".cut.off").write_bytes(content[:WORTH])
        (older / "f").symlink_to("/etc/passwd")
        (older / "folder").mkdir()
    assert hosts.deploy().sent == 0
    assert in_use(hosts) == [content] * 2
    check_nothing_is_left(hosts)


@pytest.mark.parametrize("copy", ["a.bin", "z.bin"])
def test_which_of_two_names_was_there_before_does_not_matter(hosts: Hosts, copy: str) -> None:
    content = change(hosts)
    (hosts.project / copy).write_bytes(content)
    assert hosts.deploy().sent < SIZE / 50
    assert in_use(hosts, copy) == in_use(hosts) == [content] * 2


def test_a_file_that_has_nothing_of_the_older_one_is_sent_whole(hosts: Hosts) -> None:
    (hosts.project / "model.bin").write_bytes(random.Random(1).randbytes(SIZE))
    assert hosts.deploy().sent == 2 * SIZE
    assert ("node0", "updating large files") not in hosts.watched.steps


def test_what_is_deployed_shares_nothing_with_other_versions_or_data(hosts: Hosts) -> None:
    """A run may write into its files. rsync is on the hosts and makes nothing."""
    dataset = hosts.folder / "dataset"
    dataset.mkdir()
    content = change(hosts)
    (dataset / "x.bin").write_bytes(content)
    (hosts.project / "data").symlink_to(dataset)
    hosts.deploy()
    (hosts.project / "data").unlink()
    (hosts.project / "data").mkdir()
    (hosts.project / "data" / "x.bin").write_bytes(content)
    for node in hosts.topology.nodes:  # a run has changed it, and the user has brought that back
        path = hosts.there(node.name) / "current" / "code" / "model.bin"
        path.write_bytes(content[::-1])
    (hosts.project / "model.bin").write_bytes(content[::-1])
    hosts.env["PATH"] = path_with(hosts.folder / "bin", "exit 1")

    hosts.deploy()

    for node in hosts.topology.nodes:
        for name in ("model.bin", "data/x.bin"):
            path = hosts.there(node.name) / "current" / "code" / name
            assert path.stat().st_nlink == 1
    assert (dataset / "x.bin").stat().st_nlink == 1
    assert in_use(hosts) == [content[::-1]] * 2


@pytest.mark.timeout(60)
def test_an_rsync_that_says_something_first_does_no_harm(hosts: Hosts) -> None:
    real = shutil.which("rsync")
    for number in range(3):
        hosts.env["PATH"] = path_with(
            hosts.folder / f"bin{number}", f'echo loading rsync; exec {real} "$@"'
        )
        content = bytearray(change(hosts))
        content[number] ^= 1
        (hosts.project / "model.bin").write_bytes(content)
        hosts.deploy()
        assert in_use(hosts) == [bytes(content)] * 2
    check_nothing_is_left(hosts)


def test_a_host_that_starts_nothing_more_gets_the_whole_file(hosts: Hosts) -> None:
    """Such as one with `MaxSessions 1`."""
    content = change(hosts)
    start = hosts.start

    def only_one(node: Node, argv: list[str]) -> LocalChannel:
        if argv[0] == "rsync":
            raise LabError(f"{node.name} starts no command")
        return start(node, argv)

    hosts.start = only_one  # type: ignore[method-assign]
    assert hosts.deploy().sent == 2 * SIZE
    assert in_use(hosts) == [content] * 2
    check_nothing_is_left(hosts)


def test_an_rsync_that_is_no_program_does_no_harm(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = change(hosts)
    path = path_with(hosts.folder / "bin", "exit 1")
    (hosts.folder / "bin" / "rsync").write_bytes(b"\x7fELF no program")
    hosts.env["PATH"] = os.environ["PATH"]
    monkeypatch.setenv("PATH", path)
    hosts.deploy()
    assert in_use(hosts) == [content] * 2
    check_nothing_is_left(hosts)


def test_it_takes_a_workdir_of_any_name(tmp_path: Path, environments: Path) -> None:
    hosts = Hosts(tmp_path, environments, workdir="~/a 'quoted' $(name) \"\\")
    (hosts.project / "model.bin").write_bytes(random.Random(0).randbytes(SIZE))
    hosts.deploy()
    content = change(hosts)
    outcome = hosts.deploy()
    assert outcome.sent < SIZE / 50
    (found,) = hosts.home("node0").glob("a*/project-*")
    assert (found / "current" / "code" / "model.bin").read_bytes() == content


def test_rsync_takes_a_command_of_any_name_apart(tmp_path: Path) -> None:
    """How its own `--rsh` is quoted."""
    from lab.deploy.rsync import _command

    program = tmp_path / 'it\'s a "relay"'
    program.write_text('#!/bin/sh\nprintf "%s|" "$@" > "$SAID"\n')
    program.chmod(0o755)
    said = tmp_path / "said"
    argv = ["rsync", "-e", _command([str(program), "o'ne", "t w o"]), "host:x", str(tmp_path)]
    subprocess.run(argv, env={**os.environ, "SAID": str(said)}, check=False, capture_output=True)
    assert said.read_text().startswith("o'ne|t w o|host|rsync|--server|")
