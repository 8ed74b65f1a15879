"""Cuts the network between two containers, as a switch or a firewall does that drops packets."""

from typing import TYPE_CHECKING

from lab.errors import LabError
from lab.transport.engine import api_errors, connect
from lab.transport.labs import find_labs

if TYPE_CHECKING:
    from docker.models.containers import Container

NOBODY = "02:00:00:00:00:01"
"""A hardware address that no container has."""
INTERFACE = "eth0"
CAPABLE = "docker: {link: {rate: 10gbit}}"
"""Of a topology: an emulated link gives root in its containers the right to change the network."""


def cut(lab_id: str, one: str, other: str) -> None:
    """From now on what these two nodes send each other is lost, without a word to either.

    Others reach both. It is for nodes that are removed afterwards: nothing heals it.

    Raises:
        LabError: the nodes are not up, or do not let their network be changed.
    """
    client = connect()
    (lab,) = find_labs(client, lab_id)
    containers = {node.name: node.container_id for node in lab.nodes}
    with api_errors(f"the network of {lab_id} cannot be changed"):
        ends = {name: client.containers.get(containers[name]) for name in (one, other)}
        _lose(ends[one], _address(ends[other], lab_id))
        _lose(ends[other], _address(ends[one], lab_id))


def _address(container: "Container", network: str) -> str:
    return str(container.attrs["NetworkSettings"]["Networks"][network]["IPAddress"])


def _lose(container: "Container", address: str) -> None:
    entry = ["ip", "neigh", "replace", address, "lladdr", NOBODY, "dev", INTERFACE]
    done = container.exec_run([*entry, "nud", "permanent"], user="root")
    if done.exit_code:
        said = done.output if isinstance(done.output, bytes) else b""
        raise LabError(f"{container.name}: {said.decode(errors='replace').strip()}")
