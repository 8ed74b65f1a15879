"""How to speak with the nodes of a topology, wherever they are."""

import secrets
from pathlib import Path

from lab.channel import Progress
from lab.deploy.layout import Layout
from lab.doctor.conversation import Conversation, NodeChannels
from lab.doctor.examined import Examined, Patient
from lab.node.doctor import Hello
from lab.topology import Topology
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
        from lab.doctor.allocation import Allocation

        addresses = [node.name for node in topology.nodes]  # until there is a job
        hello = _hello(topology, addresses, [dict(topology.env) for _ in topology.nodes], folder)
        return _examined(topology, addresses), Allocation(topology, folder, hello, progress)
    transport = transport_for(topology, folder, deploy=False)
    if topology.on == "docker" and not any(transport.alive(node) for node in topology.nodes):
        transport.up(progress)
    addresses = [transport.address(node) for node in topology.nodes]
    hello = _hello(topology, addresses, _environments(topology, transport), folder)
    return _examined(topology, addresses), NodeChannels(transport, hello)


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


def _environments(topology: Topology, transport: Transport) -> list[dict[str, str]]:
    """What ranks have on top of each node's own variables.

    On hosts the node itself finds the interface, as it does for a run (`Hello.by_route`).
    """
    return [
        {
            **(transport.default_env(node) if topology.on != "ssh" else {}),
            **topology.env,
        }
        for node in topology.nodes
    ]


def _hello(
    topology: Topology, addresses: list[str], env: list[dict[str, str]], folder: Path
) -> Hello:
    for node, variables in zip(topology.nodes, env, strict=True):
        if node.interface is not None and topology.on in ("ssh", "slurm"):
            variables.setdefault("GLOO_SOCKET_IFNAME", node.interface)
            variables.setdefault("NCCL_SOCKET_IFNAME", node.interface)
    on_hosts = topology.on == "ssh"
    code = f"{Layout.of(topology, folder).current}/code" if on_hosts else str(folder)
    return {
        "node": None,
        "token": secrets.token_hex(16),
        "names": [node.name for node in topology.nodes],
        "addresses": addresses,
        "env": env,
        "slots": [node.slots for node in topology.nodes],
        "folders": [topology.ssh.workdir if on_hosts else str(folder)] * topology.nnodes,
        "code": [code] * topology.nnodes,
        "port": topology.master.port or 0,
        "slurm": topology.on == "slurm",
        "by_route": topology.on in ("ssh", "slurm"),
    }
