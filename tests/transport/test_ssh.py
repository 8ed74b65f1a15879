"""Hosts over a real SSH server: what works, and what is said where it does not."""

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from lab.errors import LabError, UsageError
from lab.topology import Topology, parse_topology
from lab.transport import ssh_socket
from lab.transport.ssh import SshTransport
from lab.transport.ssh_channel import ConnectionLostError
from lab.transport.ssh_keys import KeyPair, write_private
from tests.sshd import SshPlace

ECHO = "import sys; data = sys.stdin.read(); print(data, end=''); print('!', file=sys.stderr)"


def transport(place: SshPlace, text: str | None = None, **ssh: object) -> SshTransport:
    topology = parse_topology(text if text is not None else place.topology(**ssh))
    return SshTransport(topology, place.folder)


def reach(hosts: SshTransport) -> None:
    """Connect to all nodes."""
    hosts.hosts.each(lambda node: hosts.hosts.connection(node))


def refusal(hosts: SshTransport) -> str:
    with pytest.raises(LabError) as caught:
        reach(hosts)
    return str(caught.value)


def test_streams_exit_code_and_stdin(place: SshPlace) -> None:
    hosts = transport(place)
    node = hosts.topology.nodes[0]
    channel = hosts.start(node, [sys.executable, "-c", ECHO])
    text = "ä\n" * 200_000
    channel.send(text.encode())
    assert channel.finish() == (0, text.encode(), b"!\n")
    code, out, _ = hosts.start(node, ["sh", "-c", "echo $LAB_NODE; kill -KILL $$"]).finish()
    assert (code, out) == (137, b"h0\n")


GREETS = (
    r"echo Welcome; echo '{\"type\": \"error\"}'; printf 'and more '; echo oh >&2; set -x; "
    r"eval \"$SSH_ORIGINAL_COMMAND\""
)
"""As a ~/.bashrc does that prints, also where nobody looks at it; here in authorized_keys."""


def test_what_a_login_shell_says_is_not_the_commands(place: SshPlace) -> None:
    keys = place.server.folder / "authorized_keys"
    keys.write_text(f'command="{GREETS}" {keys.read_text()}')
    hosts = transport(place)
    node = hosts.topology.nodes[0]
    channel = hosts.start(node, [sys.executable, "-c", ECHO])
    channel.send(b"text\n")
    assert channel.finish() == (0, b"text\n", b"!\n")
    assert hosts.host(node).home == str(Path.home())


def test_a_login_shell_that_begins_no_command_is_heard(place: SshPlace) -> None:
    keys = place.server.folder / "authorized_keys"
    keys.write_text(f'command="echo closed today; exit 5" {keys.read_text()}')
    hosts = transport(place)
    node = hosts.topology.nodes[0]
    assert hosts.start(node, ["true"]).finish() == (5, b"closed today\n", b"")
    with pytest.raises(LabError, match="does not work: closed today"):
        hosts.host(node)


def test_many_commands_share_one_connection(place: SshPlace) -> None:
    hosts = transport(place)
    node = hosts.topology.nodes[0]
    channels = [hosts.start(node, ["cat"]) for _ in range(9)]
    for number, channel in enumerate(channels):
        channel.send(str(number).encode())
    assert [channel.finish()[1] for channel in channels] == [str(n).encode() for n in range(9)]
    log = (place.server.folder / "log").read_text()
    assert log.count("Accepted publickey") == 1


def test_small_messages_are_not_held_back(place: SshPlace) -> None:
    """Else each login takes 80 ms more, in which one end waits for an acknowledgement."""
    hosts = transport(place)
    reach(hosts)
    sock = hosts.hosts.connection(hosts.topology.nodes[0]).client.get_transport().sock
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0


def test_a_wrong_port_names_user_host_and_port(place: SshPlace) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, but nobody listens
        port = taken.getsockname()[1]
        said = refusal(transport(place, port=port, user="jane"))
    assert said.startswith(f"h0: no connection to jane@127.0.0.1:{port}: Connection refused")


def test_a_name_that_cannot_be_resolved(place: SshPlace) -> None:
    text = place.topology().replace("127.0.0.1", "no-such-host.invalid")
    assert "no-such-host.invalid" in refusal(transport(place, text))


def test_a_host_that_does_not_answer_is_given_up(place: SshPlace) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        place.ssh_config("Host *\n    ConnectTimeout 1\n")
        port = silent.getsockname()[1]
        said = refusal(transport(place, port=port))
    assert f"127.0.0.1:{port}: no SSH server greets there in 1 s" in said


def test_one_silent_host_among_many_is_the_one_that_is_named(place: SshPlace) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        place.ssh_config(
            f"Host slow\n    HostName 127.0.0.1\n    Port {silent.getsockname()[1]}\n"
            f"    ConnectTimeout 1\nHost good*\n    HostName 127.0.0.1\n"
            f"    Port {place.server.port}\n"
        )
        nodes = "nodes: [good0, slow, good1]"
        text = re.sub("nodes: .*", nodes, place.topology(port=None))
        hosts = transport(place, text)
        said = refusal(hosts)
    assert said.startswith("slow: ")
    assert "good" not in said
    good = hosts.topology.nodes[0]
    assert hosts.start(good, ["true"]).finish()[0] == 0


def test_a_wrong_key_is_named(place: SshPlace) -> None:
    wrong = place.folder / "wrong"
    write_private(wrong, KeyPair.new().private)
    said = refusal(transport(place, identity_file=wrong))
    assert "permission denied" in said
    assert str(wrong) in said
    assert "ssh-copy-id" in said


def test_without_a_terminal_no_password_is_asked_for(place: SshPlace) -> None:
    place.ssh_config(f"Host *\n    IdentityFile {place.folder}/none\n")
    assert "there is no key to try" in refusal(transport(place, identity_file=None))


def test_an_identity_file_that_is_not_there(place: SshPlace) -> None:
    with pytest.raises(UsageError, match=r"ssh\.identity_file: there is no file"):
        transport(place, identity_file="/no/such")


def test_keys_of_the_agent(place: SshPlace, agent: None) -> None:
    place.ssh_config(f"Host *\n    IdentityFile {place.folder}/none\n")
    reach(transport(place, identity_file=None))


def listens(path: Path) -> bool:
    """Whether somebody does: a socket is there a moment before."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as probe:
        probe.connect(str(path))
        return True
    return False


@pytest.fixture
def agent(place: SshPlace, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """ssh-agent with the key that the server lets in."""
    path = place.folder / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL)
    try:
        while not listens(path):
            assert process.poll() is None
            time.sleep(0.02)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(path))
        subprocess.run(["ssh-add", "-q", place.server.identity], check=True, timeout=60)
        yield
    finally:
        process.terminate()
        process.wait()


@pytest.fixture
def full_agent(place: SshPlace, agent: None) -> None:
    """The agent has the right key behind more wrong ones than the server takes."""
    subprocess.run(["ssh-add", "-qD"], check=True, timeout=60)
    for number in range(7):
        wrong = place.folder / f"wrong{number}"
        write_private(wrong, KeyPair.new().private)
        subprocess.run(["ssh-add", "-q", wrong], check=True, timeout=60)
    subprocess.run(["ssh-add", "-q", place.server.identity], check=True, timeout=60)
    (place.folder / "right.pub").write_text(place.server.user.public)


def test_the_key_that_a_topology_names_comes_before_the_agents(
    place: SshPlace, full_agent: None
) -> None:
    reach(transport(place))
    said = refusal(transport(place, identity_file=None))
    assert "permission denied (6 keys of the agent)" in said


@pytest.mark.parametrize("more", ["", "    IdentitiesOnly yes\n"])
def test_a_public_key_says_which_of_the_agents_to_use(
    more: str, place: SshPlace, full_agent: None
) -> None:
    place.ssh_config(f"Host *\n    IdentityFile {place.folder}/right.pub\n{more}")
    reach(transport(place, identity_file=None))


def test_another_agent(place: SshPlace, agent: None, monkeypatch: pytest.MonkeyPatch) -> None:
    there = os.environ["SSH_AUTH_SOCK"]
    monkeypatch.setenv("SSH_AUTH_SOCK", "/no/such")
    monkeypatch.setenv("THERE", there)
    for where, reached in ((there, True), ("$THERE", True), ("none", False), ("/no", False)):
        place.ssh_config(f"Host *\n    IdentityAgent {where}\n    IdentityFile /no/such\n")
        hosts = transport(place, identity_file=None)
        if reached:
            reach(hosts)
        else:
            assert "there is no key to try" in refusal(hosts)


def test_a_key_that_nobody_opens_is_named(place: SshPlace) -> None:
    key = place.folder / "locked"
    make = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "open sesame", "-f", str(key)]
    subprocess.run(make, check=True, timeout=60)
    assert f"{key} needs its passphrase: ssh-add it" in refusal(transport(place, identity_file=key))


def test_a_host_that_is_known_by_another_name(place: SshPlace) -> None:
    place.known.write_text(f"alias {place.server.key.public}\n")
    assert "its host key is not known" in refusal(transport(place))
    place.ssh_config("Host *\n    HostKeyAlias alias\n")
    reach(transport(place))
    place.known.write_text(f"alias {KeyPair.new().public}\n")
    assert "ITS HOST KEY HAS CHANGED" in refusal(transport(place))


def test_an_unknown_host_key_is_refused_with_its_fingerprint(place: SshPlace) -> None:
    place.known.write_text("")
    said = refusal(transport(place))
    assert re.search(r"host key is not known \(SHA256:[\w+/]{43}\)", said)
    assert "lab trust h0" in said
    assert place.known.read_text() == ""


def test_a_changed_host_key_is_refused_loudly(place: SshPlace) -> None:
    place.server.stop()
    place.server.new_host_key()
    place.server.start()
    said = refusal(transport(place))
    assert "ITS HOST KEY HAS CHANGED" in said
    assert len(set(re.findall(r"SHA256:[\w+/]{43}", said))) == 2
    assert str(place.known) in said
    assert "lab trust --replace h0" in said


def test_any_key_of_a_host_that_is_known_will_do(place: SshPlace) -> None:
    other = KeyPair.new().public
    place.known.write_text(f"[127.0.0.1]:{place.server.port} {other}\n{place.known.read_text()}")
    reach(transport(place))


def test_a_jump_host_is_checked_as_well(place: SshPlace) -> None:
    there = f"HostName 127.0.0.1\n    Port {place.server.port}\n"
    place.ssh_config(f"Host jump\n    {there}Host inner\n    {there}    ProxyJump jump\n")
    text = re.sub("nodes: .*", "nodes: [inner]", place.topology(port=None))
    assert transport(place, text).hosts.address(parse_topology(text).nodes[0]) == "127.0.0.1"
    reach(transport(place, text))
    log = (place.server.folder / "log").read_text()
    assert log.count("Accepted publickey") == 2
    place.known.write_text("")
    assert "its host key is not known" in refusal(transport(place, text))


@pytest.mark.parametrize(
    ("jump", "place_of_it"),
    [
        ("me@jump", "me@jump:22"),
        ("me@jump:2200", "me@jump:2200"),
        ("ssh://me@jump:2200", "me@jump:2200"),
        ("ssh://me@jump/", "me@jump:22"),
        ("me@[::1]:2200", "me@[::1]:2200"),
        ("me@fe80::1:22", "me@[fe80::1:22]:22"),
        ("first, me@jump:2200", "me@jump:2200"),
    ],
)
def test_the_forms_of_a_jump(jump: str, place_of_it: str, place: SshPlace) -> None:
    place.ssh_config(f"Host inner\n    ProxyJump {jump}\n")
    hosts = transport(place, re.sub("nodes: .*", "nodes: [inner]", place.topology()))
    assert hosts.hosts.unopened(hosts.topology.nodes[0]).gateway.place == place_of_it


def test_many_hosts_share_the_connection_to_their_jump_host(place: SshPlace) -> None:
    """A server of OpenSSH's defaults turns some away where many begin at once."""
    there = f"HostName 127.0.0.1\n    Port {place.server.port}\n"
    place.ssh_config(f"Host jump\n    {there}Host node*\n    {there}    ProxyJump jump\n")
    text = re.sub("nodes: .*", "nodes: 5", place.topology(port=None))
    hosts = transport(place, text)
    reach(hosts)
    log = place.server.folder / "log"
    assert log.read_text().count("Accepted publickey") == 6
    connections = [hosts.hosts.unopened(node) for node in hosts.topology.nodes]
    place.server.cut()
    give_up = time.monotonic() + 60
    while any(one.is_connected or one.gateway.is_connected for one in connections):
        assert time.monotonic() < give_up
        time.sleep(0.02)
    reach(hosts)
    assert log.read_text().count("Accepted publickey") == 12


def test_a_jump_host_that_is_silent_is_waited_for_once(place: SshPlace) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        silent.settimeout(0)
        place.ssh_config(
            f"Host jump\n    HostName 127.0.0.1\n    Port {silent.getsockname()[1]}\n"
            "    ConnectTimeout 1\nHost node*\n    ProxyJump jump\n"
        )
        said = refusal(transport(place, re.sub("nodes: .*", "nodes: 5", place.topology(port=None))))
        assert said.count("no SSH server greets there in 1 s") == 5
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()


@pytest.mark.parametrize("greeting", [b"", b"Exceeded MaxStartups\r\n", b"SSH-2.0-x\r\n"])
def test_a_server_that_hangs_up(greeting: bytes, place: SshPlace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            connection.sendall(greeting)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        said = refusal(transport(place, port=server.getsockname()[1]))
        thread.join()
    assert "it hung up before a login: is it the port, and has it room (MaxStartups)?" in said


def test_a_host_that_is_down_behind_a_jump_host(place: SshPlace) -> None:
    port = place.server.port
    place.ssh_config(
        f"Host jump\n    HostName 127.0.0.1\n    Port {port}\n"
        "Host inner\n    HostName 127.0.0.1\n    Port 1\n    ProxyJump jump\n"
    )
    said = refusal(
        transport(place, re.sub("nodes: .*", "nodes: [inner]", place.topology(port=None)))
    )
    assert re.search(
        rf"@127.0.0.1:1: \S+@127.0.0.1:{port} cannot reach it \(Connect failed\)", said
    )


def test_a_proxy_command_that_is_not_there_is_named(place: SshPlace) -> None:
    place.ssh_config("Host *\n    ProxyCommand no-such-program %h\n")
    said = refusal(transport(place))
    assert said.endswith("No such file or directory (ProxyCommand no-such-program 127.0.0.1)")


def test_jumps_in_a_ring(place: SshPlace) -> None:
    place.ssh_config("Host a\n    ProxyJump b\nHost b\n    ProxyJump a\n")
    text = re.sub("nodes: .*", "nodes: [a]", place.topology(port=None))
    with pytest.raises(UsageError, match="ProxyJump leads from b back to a"):
        transport(place, text)


def test_the_configuration_says_user_port_and_host(place: SshPlace) -> None:
    place.ssh_config(f"Host gpu\n    HostName 127.0.0.1\n    Port {place.server.port}\n")
    text = re.sub("nodes: .*", "nodes: [{name: gpu, address: 10.0.0.1}]", place.topology(port=None))
    hosts = transport(place, text)
    reach(hosts)
    assert hosts.address(hosts.topology.nodes[0]) == "10.0.0.1"


def test_included_files_count(place: SshPlace) -> None:
    more = place.folder / "more.d"
    more.mkdir()
    (more / "a.conf").write_text(
        f"Host gpu\n    HostName 127.0.0.1\n    Port {place.server.port}\n"
    )
    place.ssh_config(f"Include {more}/*.conf\nHost other\n    Port 1\n")
    text = re.sub("nodes: .*", "nodes: [gpu]", place.topology(port=None))
    reach(transport(place, text))


def test_what_follows_an_include_is_still_for_the_hosts_that_it_was_for(place: SshPlace) -> None:
    (place.folder / "more").write_text("Host unrelated\n    HostName 127.0.0.2\n")
    there = f"HostName 127.0.0.1\n    Port {place.server.port}\n"
    place.ssh_config(f"Host gpu\n    Include {place.folder}/more\n    {there}")
    text = re.sub("nodes: .*", "nodes: [gpu]", place.topology(port=None))
    reach(transport(place, text))


def test_files_that_include_themselves(place: SshPlace) -> None:
    place.ssh_config(f"Include {place.folder}/ssh_config\n")
    with pytest.raises(UsageError, match="go round in a ring"):
        transport(place)


def test_no_python(place: SshPlace) -> None:
    hosts = transport(place, python="/no/python")
    with pytest.raises(LabError, match=r"has no /no/python: install it.*ssh\.python"):
        hosts.host(hosts.topology.nodes[0])


def test_a_python_that_is_too_old(place: SshPlace) -> None:
    old = place.folder / "old"
    code = "import sys; sys.version_info = (3, 6, 9); exec(sys.argv[1])"
    old.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$4"\n')
    old.chmod(0o755)
    hosts = transport(place, python=old)
    with pytest.raises(LabError, match=r"is Python 3\.6\.9; it takes 3\.11 or newer"):
        hosts.host(hosts.topology.nodes[0])


def test_a_python_that_does_not_work(place: SshPlace) -> None:
    hosts = transport(place, python="/bin/false")
    with pytest.raises(LabError, match=r"/bin/false on .* does not work"):
        hosts.host(hosts.topology.nodes[0])


def test_a_workdir_that_cannot_be_written(place: SshPlace) -> None:
    hosts = transport(place, workdir="/dev/null/lab")
    with pytest.raises(LabError, match="/dev/null/lab cannot be written: Not a directory"):
        hosts.up(lambda _line: None)


def test_one_machine_under_two_names(place: SshPlace) -> None:
    there = f"HostName 127.0.0.1\n    Port {place.server.port}\n"
    place.ssh_config(f"Host a\n    {there}Host b\n    {there}")
    text = re.sub("nodes: .*", "nodes: [a, b]", place.topology(port=None))
    with pytest.raises(UsageError, match="a and b are the same machine"):
        transport(place, text).up(lambda _line: None)


def test_a_connection_that_is_lost_says_so_and_is_made_again(place: SshPlace) -> None:
    hosts = transport(place)
    node = hosts.topology.nodes[0]
    channel = hosts.start(node, ["sh", "-c", "echo here; exec cat"])
    output = channel.output()
    assert next(output) == ("out", b"here\n")
    place.server.cut()
    with pytest.raises(
        ConnectionLostError, match=rf"connection to .*:{place.server.port} was lost"
    ):
        list(output)
    assert not hosts.alive(node)
    assert hosts.start(node, ["true"]).finish()[0] == 0


def test_a_host_that_answers_no_more_is_given_up_though_its_port_still_acknowledges(
    place: SshPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_socket, "KEEP_ALIVE", 1)
    monkeypatch.setattr(ssh_socket, "SILENCE", 2)
    hosts = transport(place)
    channel = hosts.start(hosts.topology.nodes[0], ["cat"])
    output = channel.output()
    time.sleep(4)  # it is asked more often than it would have to miss
    channel.send(b"there")
    assert next(output) == ("out", b"there")
    sessions = psutil.Process(place.server.process.pid).children(recursive=True)
    sessions = [one for one in sessions if one.name().startswith("sshd")]
    for one in sessions:
        one.suspend()
    try:
        with pytest.raises(ConnectionLostError, match="was lost: it has not answered for 2 s"):
            list(output)
    finally:
        for one in sessions:
            one.resume()


def test_what_is_sent_while_the_connection_breaks_is_lost_in_silence(place: SshPlace) -> None:
    """Paramiko raises EOFError then, which the reader of the streams explains."""
    hosts = transport(place)
    channel = hosts.start(hosts.topology.nodes[0], ["cat"])
    under = channel._connection.client.get_transport()
    assert under is not None
    under.packetizer.close()  # as its thread does at the other side's end
    channel.send(b"nobody reads this")
    channel.resize(20, 80)
    channel.close_stdin()
    with pytest.raises(ConnectionLostError):
        list(channel.output())
    channel.close()


def test_stdin_ends_where_the_connection_does(place: SshPlace) -> None:
    """By this an agent ends its ranks."""
    hosts = transport(place)
    said = place.folder / "said"
    script = f"echo $$; cat; echo ended > {said}"
    channel = hosts.start(hosts.topology.nodes[0], ["sh", "-c", script])
    output = channel.output()
    next(output)
    os.mkfifo(said)
    place.server.cut()
    assert said.read_text() == "ended\n"  # waits for whoever writes it


def test_a_terminal_of_its_size(place: SshPlace) -> None:
    hosts = transport(place)
    channel = hosts.start(hosts.topology.nodes[0], ["sh", "-c", "read _; stty size"], tty=True)
    channel.resize(33, 77)
    channel.send(b"\n")
    text = b"".join(data for _, data in channel.output())
    assert b"33 77" in text
    assert channel.wait(60) == 0


def test_the_interface_towards_a_neighbour() -> None:
    from lab.node.host import interface_towards

    found = interface_towards("127.0.0.1")
    assert found == ("lo" if sys.platform == "linux" else None)


def test_what_a_topology_says_of_interfaces_wins(place: SshPlace) -> None:
    text = place.topology().replace("address:", "interface: eth7, address:")
    hosts = transport(place, text)
    env = hosts.default_env(hosts.topology.nodes[0])
    assert env == {"GLOO_SOCKET_IFNAME": "eth7", "NCCL_SOCKET_IFNAME": "eth7"}


def test_lab_files_are_nowhere_but_in_the_working_directory(place: SshPlace) -> None:
    hosts = transport(place)
    node = hosts.topology.nodes[0]
    inside = hosts.place(node, place.folder / "data" / "x")
    assert inside.startswith(f"{place.host}/")
    assert inside.endswith("/current/code/data/x")
    assert "/runs/r1" in hosts.place(node, place.folder / "runs" / "r1")
    with pytest.raises(UsageError, match="is not on the hosts"):
        hosts.place(node, Path("/etc/passwd"))


def test_topologies_have_no_port_but_what_ssh_says() -> None:
    assert Topology.model_validate({"on": "ssh", "nodes": 1}).ssh.port is None


def test_json_of_a_question_survives_strange_names(place: SshPlace) -> None:
    strange = place.folder / "host ünï 'x'"
    hosts = transport(place, workdir=json.dumps(str(strange), ensure_ascii=False))
    assert hosts.host(hosts.topology.nodes[0]).workdir == str(strange)


def test_a_server_that_ends_a_session_by_a_signal(place: SshPlace) -> None:
    hosts = transport(place)
    channel = hosts.start(hosts.topology.nodes[0], ["sh", "-c", "echo $PPID; exec cat"])
    output = channel.output()
    parent = int(next(output)[1])
    os.kill(parent, signal.SIGKILL)
    assert list(output) == []
    assert channel.wait(60) == 255
