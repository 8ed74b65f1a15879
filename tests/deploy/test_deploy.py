"""From a folder onto hosts that are folders; over SSH: see test_deploy_ssh.py."""

import ast
import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from lab.deploy.deployment import deploy
from lab.deploy.layout import Layout
from lab.deploy.packages import Platform
from lab.deploy.program import OLDEST_PYTHON, program
from lab.deploy.visit import MODULES, Visit, hello, stage
from lab.errors import LabError
from lab.topology import Node
from lab.transport.local import LocalChannel
from tests.deploy.hosts import Hosts
from tests.deploy.test_tree import HOSTILE


@pytest.fixture
def hosts(tmp_path: Path, environments: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Hosts(tmp_path, environments)


def test_a_folder_comes_to_all_hosts(hosts: Hosts) -> None:
    hosts.write(script="print(1)", data="2")
    (hosts.project / "script").chmod(0o755)
    (hosts.project / "sub").mkdir()
    hosts.write(**{"sub/deep": "3"})
    (hosts.project / "link").symlink_to("sub/deep")

    outcome = hosts.deploy()

    for node in ("node0", "node1"):
        assert hosts.code(node) == {"script": "print(1)", "data": "2", "sub/deep": "3", "link": "3"}
        code = Path(outcome.releases[node].code)
        assert (code / "link").readlink() == Path("sub/deep")
        assert os.access(code / "script", os.X_OK)
        assert not os.access(code / "data", os.X_OK)
        python = outcome.releases[node].python
        subprocess.run([python, "-c", "import numpy"], check=True, cwd="/")
    assert sorted(outcome.changed) == ["node0", "node1"]
    assert outcome.sent == 2 * len("print(1)23")


def test_an_empty_folder_is_there_to_start_in(hosts: Hosts) -> None:
    """As for `lab run -m lab.training.wine`."""
    code = Path(hosts.deploy().releases["node0"].code)
    assert code.is_dir()
    code.rmdir()
    assert Path(hosts.deploy().releases["node0"].code).is_dir()


def test_an_unchanged_folder_is_not_sent_again(hosts: Hosts) -> None:
    hosts.write(a="1")
    first = hosts.deploy()
    second = hosts.deploy()

    assert second.changed == []
    assert second.sent == 0
    assert second.releases == first.releases
    assert hosts.watched.last("node0") == "up to date"


def test_only_what_changed_is_sent(hosts: Hosts) -> None:
    hosts.write(a="1", b="unchanged", gone="x", old_name="moved")
    hosts.deploy()
    hosts.write(a="22")
    (hosts.project / "gone").unlink()
    (hosts.project / "old_name").rename(hosts.project / "new_name")
    (hosts.project / "b").chmod(0o755)

    outcome = hosts.deploy()

    assert outcome.sent == 2 * len("22")
    assert hosts.code("node1") == {"a": "22", "b": "unchanged", "new_name": "moved"}
    assert os.access(Path(outcome.releases["node0"].code) / "b", os.X_OK)


def test_a_file_that_grows_meanwhile_arrives_as_it_was_seen(hosts: Hosts) -> None:
    """Such as the output of the very command, in `lab run train.py > log.txt`."""
    hosts.write(log="seen", other="1")
    plan = hosts.plan()
    hosts.write(log="seen, and more")
    deploy(plan, hosts.start, hosts.watched)
    assert hosts.code() == {"log": "seen", "other": "1"}


@pytest.mark.parametrize("now", ["", "s", "mess"])
def test_a_file_that_becomes_another_meanwhile_is_named(hosts: Hosts, now: str) -> None:
    hosts.write(log="seen", other="1")
    plan = hosts.plan()
    hosts.write(log=now)
    with pytest.raises(LabError, match="log changed while it was sent: deploy again"):
        deploy(plan, hosts.start, hosts.watched)
    hosts.deploy()
    assert hosts.code() == {"log": now, "other": "1"}


def test_any_name_arrives_as_it_is(hosts: Hosts) -> None:
    for name in HOSTILE:
        hosts.write(**{name: f"<{name}>"})
    bytes_name = os.fsdecode(b"no\xffutf8")
    hosts.write(**{bytes_name: "bytes"})

    hosts.deploy()

    assert hosts.code() == {name: f"<{name}>" for name in HOSTILE} | {bytes_name: "bytes"}


def test_links_that_lead_out_arrive_as_links_and_nothing_is_written_through_them(
    hosts: Hosts, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    hosts.write(a="1")
    (hosts.project / "out").symlink_to(outside)

    outcome = hosts.deploy()
    hosts.write(a="2")
    hosts.deploy()

    assert (Path(outcome.releases["node0"].code) / "out").readlink() == outside
    assert list(outside.iterdir()) == []
    assert "out points out of the folder" in hosts.watched.warnings[0]


def test_a_file_that_a_run_wrote_to_is_put_right(hosts: Hosts) -> None:
    hosts.write(a="1", b="2")
    outcome = hosts.deploy()
    (Path(outcome.releases["node1"].code) / "a").write_text("scribble")

    again = hosts.deploy()

    assert again.changed == ["node1"]
    assert hosts.code("node1") == {"a": "1", "b": "2"}
    assert again.sent == len("1")  # b's copy was good


def test_what_runs_wrote_beside_the_code_is_in_the_next_version_too(hosts: Hosts) -> None:
    hosts.write(a="1", removed="x")
    outcome = hosts.deploy()
    code = Path(outcome.releases["node0"].code)
    (code / "checkpoints/step-1").mkdir(parents=True)
    (code / "checkpoints/step-1/model").write_text("weights")
    (code / "b").write_text("of a run")
    (code / "latest").symlink_to("checkpoints/step-1")
    (code / "a.d").mkdir()
    (code / "a.d/x").write_text("in the way")
    hosts.write(**{"a": "2", "b": "of the project", "a.d": "a file now"})
    (hosts.project / "removed").unlink()

    hosts.deploy()

    assert hosts.code() == {
        "a": "2",
        "a.d": "a file now",
        "b": "of the project",
        "checkpoints/step-1/model": "weights",
    }
    assert (hosts.there() / "current/code/latest").readlink() == Path("checkpoints/step-1")


def test_a_run_keeps_the_version_that_it_began_with(hosts: Hosts) -> None:
    hosts.write(a="1")
    first = hosts.deploy()
    code = first.releases["node0"].code
    with subprocess.Popen(["sleep", "100"], cwd=code) as running:
        try:
            for version in "23456":
                hosts.write(a=version)
                hosts.deploy()
            assert (Path(code) / "a").read_text() == "1"
        finally:
            running.kill()
    hosts.write(a="7")
    hosts.deploy()
    assert not Path(code).exists()
    assert len(list((hosts.there() / "releases").iterdir())) == 3


def test_packages_that_no_version_uses_any_more_go_after_a_day(
    hosts: Hosts, environments: Path
) -> None:
    for name, age in (("old", 86_500), ("new", 60)):
        (environments / name).mkdir()
        (environments / name / "ready").touch()
        os.utime(environments / name / "ready", (time.time() - age,) * 2)
    (environments / "unfinished").mkdir()
    hosts.write(a="1")
    hosts.deploy()
    (used,) = {link.resolve() for link in hosts.there().glob("releases/*/venv")}
    os.utime(used / "ready", (0, 0))
    hosts.write(a="2")
    hosts.deploy()

    assert not (environments / "old").exists()
    assert (environments / "new").exists()
    assert (environments / "unfinished").exists()
    assert used.exists()


def test_rolling_back_and_forth(hosts: Hosts) -> None:
    hosts.write(a="1")
    hosts.deploy()
    with pytest.raises(LabError, match="node0, node1: there is no version before"):
        hosts.roll_back()
    hosts.write(a="2")
    hosts.deploy()

    hosts.roll_back()
    assert [hosts.code(node) for node in ("node0", "node1")] == [{"a": "1"}, {"a": "1"}]
    hosts.deploy(only_check=True)  # they were told to

    outcome = hosts.deploy()  # never runs stale code
    assert hosts.code() == {"a": "2"}
    assert len(outcome.changed) == 2
    hosts.roll_back()
    assert hosts.code() == {"a": "1"}


def test_a_rollback_that_one_host_cannot_do_leaves_all_as_they_are(
    tmp_path: Path, environments: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hosts = LosesConnection(tmp_path, environments)
    for version in "12":
        hosts.write(a=version)
        hosts.deploy()
    greeting = json.dumps({"type": "hello", **hello(hosts.plan().layout)}).encode() + b"\n"
    hosts.limit = len(program(MODULES, OLDEST_PYTHON)) + len(greeting) + 1  # then it breaks

    with pytest.raises(LabError, match=r"^node1: "):
        hosts.roll_back()
    assert [hosts.code(node) for node in ("node0", "node1")] == [{"a": "2"}, {"a": "2"}]


def test_hosts_that_share_a_home_go_back_by_one_version(
    tmp_path: Path, environments: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = sharing_a_home(tmp_path, environments, monkeypatch)
    for version in "123":
        hosts.write(a=version)
        hosts.deploy()

    outcome = hosts.roll_back()

    assert hosts.code() == {"a": "2"}
    assert sorted(outcome.changed) == ["node0", "node1"]


def test_hosts_with_different_versions_before_are_not_rolled_back(hosts: Hosts) -> None:
    for version in "12":
        hosts.write(a=version)
        hosts.deploy()
    release = hosts.there("node1") / "current" / "release.json"
    release.write_text(release.read_text().replace('"before": "', '"before": "x'))

    with pytest.raises(LabError, match="node1: there is no version before"):
        hosts.roll_back()
    assert hosts.code("node0") == {"a": "2"}


def test_only_checking_changes_nothing_and_names_the_hosts_that_are_behind(hosts: Hosts) -> None:
    hosts.write(a="1")
    with pytest.raises(LabError, match="node0, node1: the code there is not what is here"):
        hosts.deploy(only_check=True)
    outcome = hosts.deploy()
    assert hosts.deploy(only_check=True).releases == outcome.releases
    hosts.write(a="2")
    with pytest.raises(LabError, match="node0, node1: the code there is not what is here"):
        hosts.deploy(only_check=True)
    assert hosts.code() == {"a": "1"}


class Unreachable(Hosts):
    """node1 is down."""

    def start(self, node: Node, argv: list[str]) -> LocalChannel:
        if node.name == "node1":
            raise LabError("no connection to node1:22: Connection refused")
        return super().start(node, argv)


def test_where_one_host_cannot_be_had_none_switches(
    tmp_path: Path, environments: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hosts = Unreachable(tmp_path, environments, nodes=3)
    hosts.write(a="1")
    with pytest.raises(LabError, match=r"^node1: no connection to node1:22: Connection refused$"):
        hosts.deploy()
    assert not (hosts.there("node0") / "current").exists()


class LosesConnection(Hosts):
    """node1's connection breaks after so many bytes."""

    limit: int | None = None

    def start(self, node: Node, argv: list[str]) -> LocalChannel:
        channel = super().start(node, argv)
        limit = self.limit
        if node.name == "node1" and limit is not None:
            whole = channel.send
            sent = 0

            def send(data: bytes) -> None:
                nonlocal sent
                sent += len(data)
                if sent < limit:
                    whole(data)
                else:
                    channel.close_stdin()

            channel.send = send  # type: ignore[method-assign]
        return channel


def test_a_connection_that_is_lost_midway_is_repaired_by_the_next_deploy(
    tmp_path: Path, environments: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hosts = LosesConnection(tmp_path, environments)
    hosts.write(a="1")
    before = hosts.deploy()
    hosts.write(b="2", c="3" * 500_000, d="4" * 500_000)
    hosts.limit = 900_000

    with pytest.raises(LabError, match=r"^node1: .* ended there with exit code 0"):
        hosts.deploy()
    for node in ("node0", "node1"):
        assert hosts.code(node) == {"a": "1"}  # still whole, and in use
    assert len(list((hosts.there("node0") / "releases").iterdir())) == 1

    hosts.limit = None
    outcome = hosts.deploy()
    for node in ("node0", "node1"):
        assert sorted(hosts.code(node)) == ["a", "b", "c", "d"]
        assert len(list((hosts.there(node) / "releases").iterdir())) == 2
        assert list((hosts.there(node) / "blobs").iterdir()) == []
    assert outcome.sent < 2 * 1_000_000  # what had arrived was not sent again
    assert before.releases != outcome.releases


def test_a_program_that_is_killed_midway_is_repaired_by_the_next_deploy(hosts: Hosts) -> None:
    hosts.write(a="1")
    hosts.deploy()
    there = hosts.there()
    (there / "blobs/partial").write_text("half")
    (there / "current.new").symlink_to("nowhere")
    (there / "releases/0002-dead").mkdir()
    (there / "releases/0002-dead/half").write_text("half")
    hosts.write(a="2")

    hosts.deploy()

    assert hosts.code() == {"a": "2"}
    assert not (there / "releases/0002-dead").exists()
    assert not (there / "current.new").is_symlink()


@pytest.mark.parametrize(
    "break_it", ["rm -r current", "rm -r releases/*", "echo x >current/code/a"]
)
def test_what_somebody_broke_is_repaired(hosts: Hosts, break_it: str) -> None:
    hosts.write(a="1")
    hosts.deploy()
    subprocess.run(["sh", "-c", break_it], cwd=hosts.there(), check=True)

    hosts.deploy()

    assert hosts.code() == {"a": "1"}


def sharing_a_home(tmp_path: Path, environments: Path, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hosts = Hosts(tmp_path, environments)
    shared = hosts.home("node1")
    (shared / "lab/envs").unlink()
    (shared / "lab").rmdir()
    shared.rmdir()
    shared.symlink_to(hosts.home("node0"))
    return hosts


def test_two_hosts_that_share_a_home_are_served_once(
    tmp_path: Path, environments: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts = sharing_a_home(tmp_path, environments, monkeypatch)
    hosts.write(a="1")

    outcome = hosts.deploy()

    assert outcome.sent == 1
    assert sorted(outcome.changed) == ["node0", "node1"]
    assert hosts.deploy().changed == []
    assert hosts.code("node1") == {"a": "1"}


def test_a_controller_that_says_nothing_any_more_does_not_keep_the_host(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in "12":
        hosts.write(a=version)
        hosts.deploy()
    monkeypatch.setattr("lab.deploy.visit.SILENCE", 1)
    node = hosts.topology.nodes[0]
    visit = Visit(node, hosts.start, sys.executable, lambda *_: None)
    visit.ask("hello", "host", **hello(hosts.plan().layout))
    visit.ask("back", "before")  # and then its power fails

    hosts.write(a="3")
    hosts.deploy()
    assert hosts.code() == {"a": "3"}
    visit.cut()


def test_a_controller_that_falls_silent_while_it_sends_does_not_keep_the_host(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    hosts.write(a="1")
    hosts.deploy()
    monkeypatch.setattr("lab.deploy.visit.SILENCE", 1)
    hosts.write(a="2" * 9)
    plan = hosts.plan()
    visit = Visit(hosts.topology.nodes[0], hosts.start, sys.executable, lambda *_: None)
    host = visit.ask("hello", "host", **hello(plan.layout))
    environment = plan.packages.environment(Platform.of(host)).as_data()
    entries = [entry.as_data() for entry in plan.tree.entries]
    visit.ask("stage", "want", **stage(plan.tree, environment, entries))
    visit._channel.send(b"2222")  # and then its network fails

    hosts.deploy()
    assert hosts.code() == {"a": "2" * 9}
    visit.cut()


class Slow(Hosts):
    """node1 takes what is to be staged only when node0 has heard that it is still to come."""

    def __init__(self, folder: Path, environments: Path) -> None:
        super().__init__(folder, environments)
        self.told = threading.Event()

    def start(self, node: Node, argv: list[str]) -> LocalChannel:
        channel = super().start(node, argv)
        whole = channel.send

        def send(data: bytes) -> None:
            if b'"alive"' in data and node.name == "node0":
                self.told.set()
            if b'"stage"' in data and node.name == "node1":
                assert self.told.wait(60)
            whole(data)

        channel.send = send  # type: ignore[method-assign]
        return channel


def test_a_host_that_is_ready_hears_of_its_controller_while_others_are_not(
    tmp_path: Path, environments: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("lab.deploy.deployment.BEAT", 0.05)
    hosts = Slow(tmp_path, environments)
    hosts.write(a="1")
    hosts.deploy()
    assert hosts.told.is_set()
    assert [hosts.code(node) for node in ("node0", "node1")] == [{"a": "1"}, {"a": "1"}]


def test_two_deployments_of_one_folder_come_one_after_the_other(hosts: Hosts) -> None:
    hosts.write(a="1")
    errors: list[BaseException] = []

    def one() -> None:
        try:
            hosts.deploy()
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)

    threads = [threading.Thread(target=one) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert len(list((hosts.there() / "releases").iterdir())) == 1


def test_a_folder_of_the_same_name_elsewhere_is_another_project(
    hosts: Hosts, tmp_path: Path
) -> None:
    one = Layout.of(hosts.topology, tmp_path / "a" / "project")
    two = Layout.of(hosts.topology, tmp_path / "b" / "project")
    strange = Layout.of(hosts.topology, tmp_path / "-x y\n")

    assert one.project != two.project
    assert one.project.startswith("project-")
    assert strange.project.startswith("x-y-")


@pytest.fixture
def fake_python(hosts: Hosts, tmp_path: Path) -> Iterator[Path]:
    """A Python that the test writes, as node1's."""
    path = tmp_path / "python"
    start = hosts.start

    def other(node: Node, argv: list[str]) -> LocalChannel:
        return start(node, [str(path), *argv[1:]] if node.name == "node1" else argv)

    hosts.start = other  # type: ignore[method-assign]
    hosts.write(a="1")
    yield path
    assert not (hosts.there() / "current").exists()


def pretend(path: Path, version: tuple[int, int, int]) -> None:
    """Be a Python of that version, as far as programs can tell."""
    dotted = ".".join(map(str, version))
    path.write_text(
        "#!/bin/sh\n"
        f"""exec {sys.executable} -c 'import platform, sys
class V(tuple): pass
sys.version_info = V({version})
platform.python_version = lambda: "{dotted}"
exec(sys.argv.pop())' "$4"
"""
    )
    path.chmod(0o755)


def test_no_python(hosts: Hosts, fake_python: Path) -> None:
    fake_python.write_text("#!/bin/sh\nexit 127\n")
    fake_python.chmod(0o755)
    with pytest.raises(LabError, match=r"^node1: there is no .*: install Python, or name"):
        hosts.deploy()


@pytest.mark.parametrize("version", [(2, 7, 18), (3, 5, 0), (3, 9, 2), (3, 10, 1)])
def test_a_python_that_is_too_old(
    hosts: Hosts, fake_python: Path, version: tuple[int, int, int]
) -> None:
    pretend(fake_python, version)
    with pytest.raises(
        LabError,
        match=rf"^node1: .* is Python {'.'.join(map(str, version))}; it takes 3.11 or newer",
    ):
        hosts.deploy()


def test_ctrl_c_does_not_wait_for_a_host(hosts: Hosts, fake_python: Path) -> None:
    fake_python.write_text("#!/bin/sh\nexec sleep 1000\n")
    fake_python.chmod(0o755)
    start = hosts.start

    def interrupting(node: Node, argv: list[str]) -> LocalChannel:
        channel = start(node, argv)
        if node.name == "node1":
            threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
        return channel

    hosts.start = interrupting  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        hosts.deploy()


def test_another_minor_version(hosts: Hosts, fake_python: Path) -> None:
    pretend(fake_python, (3, 19, 2))
    with pytest.raises(LabError, match=r"^node1 has Python 3\.19\.2, and node0 has 3\."):
        hosts.deploy()


def test_what_the_program_says_before_it_breaks_is_passed_on(
    hosts: Hosts, fake_python: Path
) -> None:
    fake_python.write_text(
        "#!/bin/sh\necho Welcome to node1\necho cannot load libpython >&2\nexit 1\n"
    )
    fake_python.chmod(0o755)
    with pytest.raises(LabError, match="ended there with exit code 1: cannot load libpython"):
        hosts.deploy()


def test_a_disk_without_room_is_seen_before_anything_is_sent(
    hosts: Hosts, fake_python: Path
) -> None:
    fake_python.write_text(
        "#!/bin/sh\n"
        f"""exec {sys.executable} -X utf8 -c 'import shutil, sys
shutil.disk_usage = lambda path: shutil._ntuple_diskusage(100, 99, 1)
exec(sys.argv.pop())' "$4"
"""
    )
    fake_python.chmod(0o755)
    with pytest.raises(
        LabError, match=r"^node1: its disk is full \(it takes 33\.\d MB, and 1 bytes are free\)"
    ):
        hosts.deploy()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (
            errno.ENOSPC,
            r"its disk is full \(.*No space left.*\): free some, or name another",
        ),
        (errno.EROFS, "Read-only file system: let its user write there, or name another folder"),
    ],
)
def test_a_disk_that_takes_nothing(
    hosts: Hosts, fake_python: Path, number: int, words: str
) -> None:
    fake_python.write_text(
        "#!/bin/sh\n"
        f"""exec {sys.executable} -X utf8 -c 'import os, pathlib, sys
def refuse(self, *args, **kwargs):
    raise OSError({number}, os.strerror({number}), str(self))
pathlib.Path.rename = refuse
exec(sys.argv.pop())' "$4"
"""
    )
    fake_python.chmod(0o755)
    with pytest.raises(LabError, match=f"^node1: .*{words}"):
        hosts.deploy()


def test_what_is_carried_needs_only_the_standard_library() -> None:
    for module in MODULES:
        package, _, name = module.rpartition(".")
        tree = ast.parse((resources.files(package) / f"{name}.py").read_text())
        for node in ast.walk(tree):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for imported in names:
                assert imported is not None
                assert imported in MODULES or imported.split(".")[0] in sys.stdlib_module_names


def test_links_are_kept_where_nothing_is_sent(hosts: Hosts) -> None:
    hosts.write(a="1", gone="2")
    (hosts.project / "link").symlink_to("a")
    hosts.deploy()
    (hosts.project / "gone").unlink()
    outcome = hosts.deploy()
    assert outcome.sent == 0
    assert hosts.code() == {"a": "1", "link": "1"}
