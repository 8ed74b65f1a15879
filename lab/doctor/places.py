"""How to speak with the nodes of a topology, wherever they are."""

import secrets
from pathlib import Path

from lab.channel import Progress
from lab.deploy.layout import Layout
from lab.doctor.conversation import Conversation, NodeChannels
from lab.doctor.examined import Examined, Patient
from lab.node.doctor import Hello
from lab.topology import Node, Topology
from lab.transport import transport_for
from lab.transport.base import Transport


def begin(topology: Topology, folder: Path, progress: Progress) -> tuple[Examined, Conversation]:
    """Reach the nodes; containers come up as for a run where none of them is.

    Args:
        topology: the nodes.
        folder: the working directory.
        progress: told what takes time.

    Raises:
        LabError: there is nobody to speak with.
    """
    if topology.on == "slurm":
        return _over_slurm(topology, folder, progress)
    transport = transport_for(topology, folder, deploy=False)
    if topology.on == "docker" and not any(transport.alive(node) for node in topology.nodes):
        transport.up(progress)
    return over(transport, folder)


def over(transport: Transport, folder: Path) -> tuple[Examined, Conversation]:
    """Speak with nodes through a channel to each."""
    topology = transport.topology
    addresses = [transport.address(node) for node in topology.nodes]
    if topology.on == "ssh":
        # The hosts themselves find the interface, as they do for a run (`Hello.by_route`).
        env = [_interface(node) for node in topology.nodes]
        code = [f"{Layout.of(topology, folder).current}/code"] * topology.nnodes
    else:
        env = [dict(transport.default_env(node)) for node in topology.nodes]
        code = [transport.place(node, folder) for node in topology.nodes]
    disk = topology.ssh.workdir if topology.on == "ssh" else str(folder)
    hello = _hello(topology, addresses, env, code, disk)
    return _examined(topology, addresses), NodeChannels(transport, hello)


def _over_slurm(
    topology: Topology, folder: Path, progress: Progress
) -> tuple[Examined, Conversation]:
    from lab.doctor.allocation import Allocation

    addresses = [node.name for node in topology.nodes]  # until there is a job
    env = [_interface(node) for node in topology.nodes]
    hello = _hello(topology, addresses, env, [str(folder)] * topology.nnodes, str(folder))
    return _examined(topology, addresses), Allocation(topology, folder, hello, progress)


def _interface(node: Node) -> dict[str, str]:
    """The interface that the topology names."""
    if node.interface is None:
        return {}
    return {"GLOO_SOCKET_IFNAME": node.interface, "NCCL_SOCKET_IFNAME": node.interface}


def _examined(topology: Topology, addresses: list[str]) -> Examined:
    patients = tuple(
        Patient(node.name, address, node.slots)
        for node, address in zip(topology.nodes, addresses, strict=True)
    )
    link = topology.docker.link if topology.on == "docker" else None
    return Examined(
        topology.on,
        topology.resolved_backend(),
        patients,
        topology.master.port,
        {} if link is None else link.model_dump(exclude_none=True),
    )


def _hello(
    topology: Topology, addresses: list[str], env: list[dict[str, str]], code: list[str], disk: str
) -> Hello:
    return {
        "node": None,
        "token": secrets.token_hex(16),
        "names": [node.name for node in topology.nodes],
        "addresses": addresses,
        "env": [{**variables, **topology.env} for variables in env],
        "slots": [node.slots for node in topology.nodes],
        "folders": [disk] * topology.nnodes,
        "code": code,
        "port": topology.master.port or 0,
        "slurm": topology.on == "slurm",
        "by_route": topology.on in ("ssh", "slurm"),
    }
