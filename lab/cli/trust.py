"""`lab trust`: take a host's key for its own, after somebody has compared the fingerprint."""

import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from lab.cli.options import TopologyOption
from lab.errors import EXIT_FAILURE, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from lab.transport.ssh_connection import SshConnection


def trust(
    hosts: Annotated[
        list[str],
        typer.Argument(metavar="HOST...", help="Nodes of the topology, or [user@]host[:port]."),
    ],
    topology: TopologyOption = None,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", help="Do not ask; for hosts on a network you trust.")
    ] = False,
    fingerprint: Annotated[
        str | None,
        typer.Option(
            metavar="SHA256:...",
            help="Trust the host if this is its key's fingerprint; do not ask.",
            show_default=False,
        ),
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Also where another key is known of the host.")
    ] = False,
) -> None:
    """Show the fingerprint of a host's key, and add the key to lab's own file of known hosts.

    Compare it with what the host's owner says: `ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub`
    prints it on the host. Keys that ssh knows already (~/.ssh/known_hosts) need no `lab trust`.
    """
    if fingerprint is not None and len(hosts) > 1:
        raise UsageError("--fingerprint is one host's; trust the others by themselves")
    connections = _connections(hosts, topology)
    trusted = [_trust(connection, yes, fingerprint, replace) for connection in connections]
    raise typer.Exit(0 if all(trusted) else EXIT_FAILURE)


def _trust(connection: "SshConnection", yes: bool, expected: str | None, replace: bool) -> bool:
    """One host; whether its key is known now."""
    from lab.transport.known_hosts import add_key, private_file
    from lab.transport.ssh_connection import fingerprint

    found, known_in, others = connection.offered_key()
    shown = f"{found.get_name()} {fingerprint(found)}"
    if known_in is not None:
        print(f"{connection.known_name} is known already, from {known_in}: {shown}")
        return True
    print(f"{connection.known_name} has {shown}")
    for path, other in others:
        print(f"  {path} HAS ANOTHER KEY FOR IT: {fingerprint(other)}")
    if others and not replace:
        raise UsageError(
            f"{connection.known_name} is known by another key: where its owner says that the new "
            f"one is right, lab trust --replace {connection.called}"
        )
    if not _agrees(connection.called, fingerprint(found), yes, expected):
        return False
    add_key(private_file(), connection.known_name, found)
    print(f"  added to {private_file()}")
    for path in {path for path, _ in others} - {private_file()}:  # not ours to write
        print(f"  the other key is good still, until you take it out: {_removal(path, connection)}")
    return True


def _removal(path: "Path", connection: "SshConnection") -> str:
    return shlex.join(["ssh-keygen", "-R", connection.known_name, "-f", str(path)])


def _connections(hosts: list[str], source: str | None) -> "list[SshConnection]":
    from lab.topology import SshOptions, load_topology
    from lab.transport.ssh_connection import SshConnection, target
    from lab.transport.ssh_hosts import SshHosts
    from lab.transport.ssh_settings import SshSettings

    loaded = load_topology(source)
    nodes = {node.name: node for node in loaded.nodes} if loaded.on == "ssh" else {}
    if source is not None and loaded.on != "ssh":
        raise UsageError(f"{loaded.name} is on {loaded.on}: only hosts have keys")
    known = SshHosts(loaded)
    config = loaded.ssh.config if loaded.on == "ssh" else None  # which names jump hosts, too
    found = []
    for name in hosts:
        if name in nodes:
            found.append(known.unopened(nodes[name]))
        else:
            user, host, port = target(name)
            settings = SshSettings.of(SshOptions(user=user, port=port, config=config))
            found.append(SshConnection(host, settings, called=name))
    return found


def _agrees(host: str, found: str, yes: bool, expected: str | None) -> bool:
    """Whether that fingerprint is the right one."""
    if expected is not None:
        if expected != found:
            print(f"  NOT ADDED: it is not {expected}", file=sys.stderr)
        return expected == found
    if yes:
        return True
    if not (sys.stdin is not None and sys.stdin.isatty()):
        raise UsageError(
            "nobody can be asked here: compare the fingerprint, then lab trust --fingerprint "
            f"{found} {host}"
        )
    return typer.confirm("  is that its owner's word?")
