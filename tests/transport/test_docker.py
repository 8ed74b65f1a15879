"""Nodes that are containers: what they are given, what they may, and that nothing stays behind."""

import json
import os
import platform
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.errors import LabError, UsageError
from lab.node.processes import this_process
from lab.topology import SLURM_LAB, Topology
from lab.transport import labs
from lab.transport.containers import LABEL
from lab.transport.docker import DockerTransport, list_labs
from lab.transport.engine import connect
from lab.transport.garbage import collect_garbage, why_garbage

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]
DROPPED = "0000000000000000"
DAC_OVERRIDE = "0000000000000002"


def quiet(line: str) -> None:
    """A progress callback."""


def make(**fields: Any) -> Topology:
    docker = {"cpus": 0.5, "memory": "256m", "shm": "32m", **fields.pop("docker", {})}
    return Topology.model_validate({"name": "test", "nodes": 2, "docker": docker, **fields})


class Nodes:
    """Topologies brought up in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[DockerTransport] = []

    def transport(self, topology: Topology) -> DockerTransport:
        found = DockerTransport(topology, self.folder)
        self.made.append(found)
        return found

    def up(self, **fields: Any) -> DockerTransport:
        found = self.transport(make(**fields))
        found.up(quiet)
        return found


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[Nodes]:
    found = Nodes(tmp_path)
    try:
        yield found
    finally:
        for transport in found.made:
            transport.down(quiet)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DockerTransport]:
    """Two nodes that the tests that only look share."""
    transport = DockerTransport(
        make(env={"GREETING": "hello $HOME"}), tmp_path_factory.mktemp("pair")
    )
    transport.up(quiet)
    yield transport
    transport.down(quiet)


def run(transport: DockerTransport, argv: Sequence[str], node: int = 0, **options: Any) -> str:
    """What a command prints to stdout; fails the test where it fails."""
    channel = transport.start(transport.topology.nodes[node], argv, **options)
    channel.close_stdin()
    got = {"out": b"", "err": b""}
    for stream, data in channel.output():
        got[stream] += data
    assert channel.wait(30) == 0, got
    channel.close()
    return got["out"].decode().strip()


def python(transport: DockerTransport, code: str, node: int = 0, **options: Any) -> str:
    return run(
        transport, [*transport.python(transport.topology.nodes[0]), "-c", code], node, **options
    )


def inspect(transport: DockerTransport, node: int = 0) -> dict[str, Any]:
    name = f"{transport.lab_id}-{transport.topology.nodes[node].name}"
    found: dict[str, Any] = connect().api.inspect_container(name)
    return found


def things(lab_id: str) -> list[str]:
    """Ids of the containers and networks of a lab."""
    api = connect().api
    wanted = {"label": f"{LABEL}.lab={lab_id}"}
    return [
        *(item["Id"] for item in api.containers(all=True, filters=wanted)),
        *(item["Id"] for item in api.networks(filters=wanted)),
    ]


# What a node is


def test_a_node_knows_its_name_and_reaches_the_others_by_theirs(pair: DockerTransport) -> None:
    assert [run(pair, ["hostname"], node) for node in (0, 1)] == ["node0", "node1"]
    code = "import socket; print(socket.gethostbyname('node0'), socket.gethostbyname('node1'))"
    first, second = python(pair, code).split()
    assert first != second
    assert python(pair, code, 1).split() == [first, second]


def test_ranks_find_their_place_in_the_environment(pair: DockerTransport) -> None:
    names = ("NODE_RANK", "NNODES", "MASTER_ADDR", "MASTER_PORT", "LAB_NODE", "GREETING")
    code = f"import os; print(*(os.environ[n] for n in {names}), sep='|')"
    assert python(pair, code) == "0|2|node0|29500|node0|hello $HOME"
    assert python(pair, code, 1) == "1|2|node0|29500|node1|hello $HOME"


def test_limits_labels_and_network_are_as_the_topology_says(pair: DockerTransport) -> None:
    found = inspect(pair)
    host = found["HostConfig"]
    assert host["NanoCpus"] == 500_000_000
    assert host["Memory"] == host["MemorySwap"] == 256 << 20
    assert host["Init"] is True
    assert host["CapDrop"] == ["ALL"]
    assert "CAP_NET_ADMIN" not in host["CapAdd"]
    assert host["PortBindings"] in (None, {})
    assert found["NetworkSettings"]["Ports"] in (None, {})
    assert list(found["NetworkSettings"]["Networks"]) == [pair.lab_id]
    labels = found["Config"]["Labels"]
    assert labels[f"{LABEL}.lab"] == pair.lab_id
    assert labels[f"{LABEL}.node"] == "node0"
    assert labels[f"{LABEL}.node-rank"] == "0"
    assert labels[f"{LABEL}.nodes"] == "2"
    assert labels[f"{LABEL}.workdir"] == str(pair.workdir)
    assert f"{LABEL}.run" not in labels
    size = "import os; s = os.statvfs('/dev/shm'); print(s.f_frsize * s.f_blocks)"
    assert int(python(pair, size)) == 32 << 20


def test_ranks_have_a_name_and_a_home_and_no_way_to_root(pair: DockerTransport) -> None:
    code = """
import getpass, os, pathlib
home = pathlib.Path.home()
(home / "cache").write_text("x")
status = dict(l.split(":", 1) for l in open("/proc/self/status") if ":" in l)
print(getpass.getuser(), home, os.getuid(), status["NoNewPrivs"].strip(), status["CapBnd"].strip())
"""
    name, home, uid, no_new, bounding = python(pair, code).split()
    assert (name, home) == ("lab", "/home/lab")
    assert uid != "0"
    assert no_new == "1"
    assert bounding == (DAC_OVERRIDE if os.getuid() == 0 else DROPPED)


def test_lab_is_importable_from_anywhere(pair: DockerTransport) -> None:
    (pair.workdir / "lab").mkdir(exist_ok=True)
    (pair.workdir / "lab/__init__.py").write_text("raise RuntimeError('the user has a lab too')")
    argv = [
        *pair.python(pair.topology.nodes[0]),
        "-P",
        "-c",
        "import lab.node.agent, torch; print(lab.__file__)",
    ]
    assert run(pair, argv) == "/opt/lab/lab/__init__.py"
    assert run(pair, argv, cwd="/") == "/opt/lab/lab/__init__.py"


def test_the_working_directory_is_current_at_its_own_path(pair: DockerTransport) -> None:
    assert run(pair, ["pwd"]) == str(pair.workdir)
    (pair.workdir / "inner").mkdir(exist_ok=True)
    assert run(pair, ["pwd"], cwd=str(pair.workdir / "inner")) == str(pair.workdir / "inner")


# Whose files


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders away")  # not a CI matter
def test_what_ranks_write_belongs_to_the_owner_of_the_folder(nodes: Nodes) -> None:
    os.chown(nodes.folder, 1234, 2345)
    nodes.folder.chmod(0o700)
    transport = nodes.up()
    code = "import getpass, os; open('made', 'w'); print(getpass.getuser(), os.getuid())"
    assert python(transport, code) == "lab 1234"
    status = run(transport, ["grep", "CapEff", "/proc/self/status"])
    assert status.split()[1] == DROPPED
    made = (nodes.folder / "made").stat()
    assert (made.st_uid, made.st_gid) == (1234, 2345)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders away")
def test_the_run_directory_says_whose_work_it_is_first(nodes: Nodes) -> None:
    run_dir = nodes.folder / "runs" / "one"
    run_dir.mkdir(parents=True)
    os.chown(run_dir, 1234, 1234)
    transport = nodes.up()
    assert run(transport, ["id", "-u"], env={"LAB_RUN_DIR": str(run_dir)}) == "1234"
    # A second user on the same node has a name of its own.
    assert run(transport, ["id", "-un"], env={"LAB_RUN_DIR": str(run_dir)}) == "lab1234"


@pytest.mark.skipif(os.getuid() != 0, reason="needs root as the caller")
def test_for_root_ranks_are_not_root_and_can_still_write(nodes: Nodes) -> None:
    nodes.folder.chmod(0o700)
    transport = nodes.up()
    assert run(transport, ["sh", "-c", "echo x > made; id -u"]) == "1000"
    assert (nodes.folder / "made").read_text() == "x\n"


def test_a_folder_of_the_system_is_refused() -> None:
    with pytest.raises(UsageError, match="would cover"):
        DockerTransport(make(), Path("/etc"))


# Commands on nodes


def test_streams_exit_codes_and_stdin(pair: DockerTransport) -> None:
    script = "cat; echo oh >&2; exit 37"
    channel = pair.start(pair.topology.nodes[0], ["sh", "-c", script])
    channel.send(b"one\n")
    channel.send(b"two\n")
    channel.close_stdin()
    channel.close_stdin()
    channel.send(b"too late\n")
    got = {"out": b"", "err": b""}
    for stream, data in channel.output():
        got[stream] += data
    assert got == {"out": b"one\ntwo\n", "err": b"oh\n"}
    assert channel.wait(10) == 37
    channel.close()


def test_a_large_output_comes_whole_and_in_order(pair: DockerTransport) -> None:
    count = 2_000_000
    channel = pair.start(pair.topology.nodes[0], ["seq", str(count)])
    data = b"".join(piece for _, piece in channel.output())
    assert channel.wait(10) == 0
    assert data == "".join(f"{n}\n" for n in range(1, count + 1)).encode()


def test_signals_are_told_as_a_shell_tells_them(pair: DockerTransport) -> None:
    channel = pair.start(pair.topology.nodes[0], ["sh", "-c", "kill -9 $$"])
    assert list(channel.output()) == []
    assert channel.wait(10) == 137


def test_wait_gives_up_and_close_ends_the_command(pair: DockerTransport) -> None:
    channel = pair.start(pair.topology.nodes[0], ["sh", "-c", "sleep 1234 & sleep 1234"])
    with pytest.raises(TimeoutError):
        channel.wait(0.05)
    channel.close()
    assert channel.wait(10) == 143
    code = """
from pathlib import Path
print([p for p in Path("/proc").glob("[0-9]*/cmdline") if p.read_bytes() == b"sleep\\0001234\\0"])
"""
    assert python(pair, code) == "[]"


def test_a_command_ends_with_the_process_that_started_it(pair: DockerTransport) -> None:
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(labs.__file__).parents[2])!r})
from tests.transport.test_docker import make
from lab.transport.docker import DockerTransport
transport = DockerTransport(make(), Path({str(pair.workdir)!r}))
script = "cat; echo ended > stdin-ended"
channel = transport.start(transport.topology.nodes[0], ["sh", "-c", script])
print("started", flush=True)
import time; time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    process.kill()
    process.wait()
    give_up = time.monotonic() + 30
    while not (pair.workdir / "stdin-ended").exists():
        assert time.monotonic() < give_up
        time.sleep(0.1)


def test_a_terminal_is_one(pair: DockerTransport) -> None:
    channel = pair.start(pair.topology.nodes[0], ["sh", "-c", "tty; read x; echo got $x"], tty=True)
    channel.send(b"word\n")
    text = b"".join(data for _, data in channel.output()).decode()
    assert channel.wait(10) == 0
    assert "/dev/pts/" in text
    assert "got word" in text


def test_a_node_that_is_not_up_says_so(nodes: Nodes) -> None:
    transport = nodes.transport(make())
    assert not transport.alive(transport.topology.nodes[0])
    with pytest.raises(LabError, match="No such container"):
        transport.start(transport.topology.nodes[0], ["true"])


# Networks and links


def test_addresses_of_the_topology_are_the_nodes(nodes: Nodes) -> None:
    given = [{"name": "a", "address": "10.213.77.10"}, {"name": "b"}]
    transport = nodes.up(nodes=given)
    code = "import socket; print(socket.gethostbyname('a'))"
    assert python(transport, code, 1) == "10.213.77.10"
    assert transport.address(transport.topology.nodes[0]) == "10.213.77.10"


def test_internet_false_is_an_internal_network(pair: DockerTransport, nodes: Nodes) -> None:
    transport = nodes.up(docker={"internet": False})
    assert connect().api.inspect_network(transport.lab_id)["Internal"] is True
    assert connect().api.inspect_network(pair.lab_id)["Internal"] is False
    code = "import socket; print(socket.gethostbyname('node1'))"
    assert python(transport, code) != ""


def test_the_rate_of_a_link_shapes_what_a_node_sends(nodes: Nodes) -> None:
    transport = nodes.up(docker={"link": {"rate": "20mbit"}})
    server = """
import socket
with socket.create_server(("", 7000)) as s:
    print("up\\n", end="", flush=True)
    c, _ = s.accept()
    n = 0
    while data := c.recv(1 << 16): n += len(data)
    print(n)
"""
    receiver = transport.start(
        transport.topology.nodes[1], [*transport.python(transport.topology.nodes[1]), "-c", server]
    )
    received = receiver.output()
    assert next(received) == ("out", b"up\n")
    size = 4 << 20
    python(
        transport,
        f"import socket; socket.create_connection(('node1', 7000)).sendall(bytes({size}))",
    )
    assert b"".join(data for _, data in received).split() == [str(size).encode()]
    # The kernel's own counters, on both nodes' only interface.
    (tbf,) = json.loads(run(transport, ["tc", "-s", "-j", "qdisc", "show", "dev", "eth0"]))
    assert tbf["kind"] == "tbf"
    assert tbf["options"]["rate"] == 20_000_000 // 8
    assert tbf["bytes"] > size
    assert tbf["overlimits"] > 0


def test_a_kernel_without_netem_refuses_delay_and_nothing_is_left(nodes: Nodes) -> None:
    transport = nodes.transport(make(docker={"link": {"delay": "1ms"}}))
    refusal = ""
    try:
        transport.up(quiet)
    except LabError as error:
        refusal = str(error)
    if refusal:
        assert "sch_netem" in refusal
        assert things(transport.lab_id) == []
    else:  # this kernel has it: then it must be in force
        (netem,) = json.loads(run(transport, ["tc", "-j", "qdisc", "show", "dev", "eth0"]))
        assert netem["kind"] == "netem"


# Up and down


def test_up_again_changes_nothing_and_down_removes_all(nodes: Nodes) -> None:
    transport = nodes.up()
    before = things(transport.lab_id)
    assert len(before) == 3
    again = nodes.up()
    assert things(again.lab_id) == before
    again.release()  # it made none, so it removes none
    assert things(again.lab_id) == before
    assert [lab["state"] for lab in list_labs() if lab["id"] == again.lab_id] == ["up"]
    again.down(quiet)
    assert things(again.lab_id) == []
    again.down(quiet)


def test_up_replaces_nodes_of_another_configuration_and_broken_ones(nodes: Nodes) -> None:
    first = set(things(nodes.up().lab_id))
    second = nodes.up(docker={"shm": "48m"})
    assert not first & set(things(second.lab_id))
    connect().api.kill(f"{second.lab_id}-node1")
    lines: list[str] = []
    second.up(lines.append)
    assert second.alive(second.topology.nodes[1])
    assert any("replacing" in line for line in lines)


def test_a_run_may_take_some_of_the_nodes_that_are_up(nodes: Nodes) -> None:
    before = things(nodes.up().lab_id)
    part = nodes.transport(make(nodes=1))
    part.up(quiet, "a-run")
    assert things(part.lab_id) == before
    assert python(part, "import os; print(os.environ['LAB_NODE'])") == "node0"
    part.up(quiet)  # which asks for one node, not for one at least
    assert len(things(part.lab_id)) == 2


def test_nodes_are_not_replaced_under_a_running_command(nodes: Nodes) -> None:
    transport = nodes.up()
    channel = transport.start(transport.topology.nodes[0], ["cat"])
    other = nodes.transport(make(docker={"shm": "48m"}))
    with pytest.raises(LabError, match="while a command runs on node0"):
        other.up(quiet)
    channel.close_stdin()
    assert channel.wait(10) == 0
    other.up(quiet)


def test_a_failure_in_the_middle_leaves_nothing(nodes: Nodes) -> None:
    transport = nodes.transport(make())
    name = f"{transport.lab_id}-node1"
    blocker = connect().api.create_container("debian:bookworm-slim", name=name)["Id"]
    try:
        with pytest.raises(LabError, match=r"node1 cannot be made: .*in use"):
            transport.up(quiet)
        assert things(transport.lab_id) == []
    finally:
        connect().api.remove_container(blocker)


def test_more_than_the_engine_has_is_said_in_its_words(nodes: Nodes) -> None:
    transport = nodes.transport(make(docker={"cpus": 4096}))
    cure = "CPUs available; ask for no more: docker.cpus, or cpus of the node, in the topology"
    with pytest.raises(LabError, match=rf"node[01] cannot be made: .* {cure}"):
        transport.up(quiet)
    assert things(transport.lab_id) == []


@pytest.mark.parametrize(
    ("after", "between"), [(0.0, 0.0), (0.0, 0.01), (0.15, 0.01), (0.4, 0.01), (0.8, 0.01)]
)
def test_an_interrupt_at_any_moment_leaves_nothing(
    nodes: Nodes, after: float, between: float
) -> None:
    code = f"""
import signal, sys, time
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # where the tests' caller ignores it
sys.path.insert(0, {str(Path(labs.__file__).parents[2])!r})
from tests.transport.test_docker import make
from lab.transport.docker import DockerTransport
def progress(line):
    if line.startswith("bringing up"): print("now", flush=True)
DockerTransport(make(), Path({str(nodes.folder)!r})).up(progress)
time.sleep(60)
"""
    transport = nodes.transport(make())
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "now\n"
    time.sleep(after)
    process.send_signal(signal.SIGINT)
    time.sleep(between)
    process.send_signal(signal.SIGINT)
    process.wait(60)
    left = things(transport.lab_id)
    # Either it was caught in the middle, and all is gone, or it was through, and all is there.
    assert left == [] or (len(left) == 3 and after > 0.2)


# Garbage


def _garbage(transport: DockerTransport, here: Path | None = None) -> list[str]:
    """By default as `lab gc` sees it that is called in the lab's own folder."""
    found = collect_garbage(here or transport.workdir, dry_run=True)
    return [line for line in found if transport.lab_id in line]


def _write_state(
    folder: Path, run_id: str, controller: dict[str, Any], state: str = "running"
) -> None:
    directory = folder / "runs" / run_id
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"state": state, "controller": controller})
    (directory / "state.json").write_text(text)


def test_a_lab_that_is_up_is_no_garbage_and_one_with_a_dead_node_is(nodes: Nodes) -> None:
    transport = nodes.up()
    assert _garbage(transport) == []
    connect().api.kill(f"{transport.lab_id}-node0")
    assert f"of {nodes.folder.resolve()}: only 1 of 2 nodes" in _garbage(transport)[0]
    assert _garbage(transport, Path("/")) == [], "its owner may have stopped the node"
    collect_garbage(nodes.folder)
    assert things(transport.lab_id) == []


def test_a_rehearsal_with_a_dead_host_is_no_garbage() -> None:
    here = Path("/not/here")
    found = labs.Lab("x-1", SLURM_LAB, here, "another-machine", 2, None)
    found.nodes.append(labs.LabNode("n", 0, "running", "id", ""))
    found.networks.append("id")
    assert why_garbage(found, here) is None
    found.nodes.clear()
    assert why_garbage(found, here) == "only 0 of 2 nodes"


def test_nodes_of_a_run_stay_after_it_and_go_when_its_controller_has_gone(nodes: Nodes) -> None:
    me = this_process()
    _write_state(nodes.folder, "mine", me)
    transport = nodes.transport(make())
    transport.up(quiet, "mine")
    before = things(transport.lab_id)
    transport.up(quiet, "another")
    assert things(transport.lab_id) == before
    assert _garbage(transport) == []
    _write_state(nodes.folder, "mine", me, state="finished")
    assert _garbage(transport) == []
    # The pid lives, but it is another process than the one that was recorded.
    _write_state(nodes.folder, "mine", {**me, "started": "1"})
    assert "the controller of its run mine has gone" in _garbage(transport)[0]
    transport.up(quiet)
    assert _garbage(transport) == []
    assert not set(things(transport.lab_id)) & set(before)


def test_an_interrupted_run_takes_its_nodes_along_unless_they_are_used(nodes: Nodes) -> None:
    transport = nodes.transport(make())
    transport.up(quiet, "mine")
    channel = transport.start(transport.topology.nodes[1], ["cat"])
    transport.release()
    assert len(things(transport.lab_id)) == 3
    channel.close_stdin()
    assert channel.wait(10) == 0
    transport.release()
    assert things(transport.lab_id) == []


def test_a_lab_goes_with_its_folder_and_a_lone_network_with_nobody(nodes: Nodes) -> None:
    transport = nodes.up()
    moved = nodes.folder.with_name("moved")
    nodes.folder.rename(moved)
    assert "has gone" in _garbage(transport)[0]
    moved.rename(nodes.folder)
    for item in connect().api.containers(filters={"label": f"{LABEL}.lab={transport.lab_id}"}):
        connect().api.remove_container(item["Id"], force=True)
    with labs.workdir_lock(nodes.folder, wait=True):
        assert _garbage(transport) == []  # somebody is bringing it up
    assert "0 of 2 nodes" in _garbage(transport)[0]


def test_another_machines_lab_is_judged_by_its_nodes_only(nodes: Nodes) -> None:
    found = labs.Lab("x-1", "x", Path("/not/here"), "another-machine", 1, "run")
    found.nodes.append(labs.LabNode("n", 0, "running", "id", ""))
    found.networks.append("id")
    assert found.host != platform.node()
    assert why_garbage(found, found.workdir) is None


# The engine


def test_without_an_engine_the_error_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no.sock")
    with pytest.raises(LabError) as caught:
        DockerTransport(make(), tmp_path)
    text = str(caught.value)
    assert "no Docker engine answers" in text
    assert "there is no such socket" in text
    assert "--on local" in text


def test_the_chosen_docker_context_is_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    socket = tmp_path / "engine.sock"
    host = f"host=unix://{socket}"
    for argv in (["create", "mine", "--docker", host], ["use", "mine"]):
        subprocess.run(["docker", "context", *argv], check=True)
    with pytest.raises(LabError, match=str(socket)):
        connect()
    socket.symlink_to("/var/run/docker.sock")
    assert stat.S_ISSOCK(socket.stat().st_mode)
    assert connect().ping()
