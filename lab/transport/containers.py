"""What the containers of a lab are: pure data, from which Docker is driven and Compose rendered.

Nothing here talks to an engine, so what is tested here holds for both.
"""

import hashlib
import ipaddress
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath

from lab.errors import UsageError
from lab.topology import Node, Topology
from lab.topology.options import Link
from lab.topology.units import memory_bytes, rate_bits

LABEL = "multinode-lab"
"""Prefix of every label: whatever has `multinode-lab.lab` was made by lab and is removed by it."""
DEFAULT_PORT = 29500
"""MASTER_PORT where no run picks one: `lab exec`, Compose by itself, other launchers; torchrun's
default too."""
ENTRYPOINT = "/usr/local/bin/node-entrypoint"
PYTHON = "/opt/venv/bin/python"

CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "KILL", "SETGID", "SETPCAP", "SETUID")
"""What docker/node-entrypoint needs before it drops everything, and docker's init to pass signals
on to a process of another user. NET_ADMIN comes on top where a link is emulated."""

# Mounted over one of these, the working directory would hide what a node needs to run at all.
_NEEDED = (
    *("/bin", "/dev", "/etc", "/home/lab", "/lib", "/lib64", "/opt/lab", "/opt/venv", "/proc"),
    *("/run/lab", "/sbin", "/sys", "/usr/bin", "/usr/lib", "/usr/local/bin", "/usr/sbin", "/var"),
)
_WIDEST = 16
"""Shortest network prefix a lab may take for explicit addresses: 65,534 hosts."""


@dataclass(frozen=True)
class Container:
    """One node as a container."""

    node: str
    """Name of the node: host name and network alias."""
    aliases: tuple[str, ...]
    """Further names in the lab's network: an address of the node that is a name."""
    image: str
    command: tuple[str, ...]
    workdir: str
    """Where the caller's working directory is mounted; current for every command."""
    env: Mapping[str, str]
    cap_add: tuple[str, ...]
    cpus: float | None
    memory: str | None
    shm: str | None
    gpus: int | str | None
    ip: str | None
    """Fixed address in the lab's network; None: the engine gives one."""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """The lab's own bridge network. No port of it is published."""

    internal: bool
    """Whether the outside cannot be reached from it."""
    subnet: str | None
    """Where nodes have addresses: the network that holds them."""
    gateway: str | None


@dataclass(frozen=True)
class LabSpec:
    """All that `lab up` makes for one topology in one working directory."""

    lab_id: str
    network: Network
    containers: tuple[Container, ...]
    labels: Mapping[str, str]
    """On everything that is made."""

    @property
    def configs(self) -> dict[str, str]:
        """By node a hash of all that decides what it is: one with another hash is replaced.

        How many other nodes there are does not count, so that a run may take a part of them.
        """
        return {container.node: self._config(container) for container in self.containers}

    def _config(self, container: Container) -> str:
        env = {name: value for name, value in container.env.items() if name != "NNODES"}
        labels = {name: self.labels[name] for name in self.labels if name != f"{LABEL}.nodes"}
        what = [asdict(self.network), {**asdict(container), "env": env}, labels]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def lab_id(topology: Topology, workdir: Path) -> str:
    """Name of the lab: the topology's, and six hex digits that stand for the working directory."""
    return f"{topology.name}-{hashlib.sha256(str(workdir).encode()).hexdigest()[:6]}"


def lab_spec(topology: Topology, workdir: Path, image: str, *, host: str = "") -> LabSpec:
    """The lab of a topology whose working directory keeps its path on the nodes.

    `host` names the machine that `workdir` is on, for engines that several machines use.

    Raises:
        UsageError: the working directory or an address cannot be had in containers.
    """
    check_workdir(workdir)
    name = lab_id(topology, workdir)
    labels = {
        f"{LABEL}.lab": name,
        f"{LABEL}.topology": topology.name,
        f"{LABEL}.nodes": str(topology.nnodes),
        f"{LABEL}.workdir": str(workdir),
        f"{LABEL}.host": host,
    }
    return LabSpec(
        lab_id=name,
        network=lab_network(topology),
        containers=tuple(
            container(topology, node, image, str(workdir), ("sleep", "infinity"))
            for node in topology.nodes
        ),
        labels=labels,
    )


def container(
    topology: Topology, node: Node, image: str, workdir: str, command: tuple[str, ...]
) -> Container:
    """One node of a topology as a container that runs `command`."""
    rank = topology.node_rank(node.name)
    docker = topology.docker
    return Container(
        node=node.name,
        aliases=(node.address,) if node.address and not _is_ip(node.address) else (),
        image=image,
        command=command,
        workdir=workdir,
        env={
            **topology.env,
            "LAB_NODE": node.name,
            "LAB_TOPOLOGY": topology.name,
            "LAB_WORKDIR": workdir,
            "NODE_RANK": str(rank),
            "NNODES": str(topology.nnodes),
            "MASTER_ADDR": node_address(topology.master_node),
            "MASTER_PORT": str(topology.master.port or DEFAULT_PORT),
            **({"GLOO_SOCKET_IFNAME": node.interface} if node.interface else {}),
            **link_env(docker.link),
        },
        cap_add=tuple(sorted((*CAPABILITIES, *(("NET_ADMIN",) if docker.link else ())))),
        cpus=node.cpus if node.cpus is not None else docker.cpus,
        memory=node.memory if node.memory is not None else docker.memory,
        shm=docker.shm,
        gpus=docker.gpus,
        ip=_addresses(topology).get(node.name),
        labels={f"{LABEL}.node": node.name, f"{LABEL}.node-rank": str(rank)},
    )


def node_address(node: Node) -> str:
    """By what the other nodes reach it: its address, else its name, which the network resolves."""
    return node.address if node.address is not None else node.name


def link_env(link: Link | None) -> dict[str, str]:
    """What docker/node-entrypoint hands to tc.

    The burst is what a token bucket must hold to reach the rate with a timer of 250 Hz (tc-tbf(8)),
    and never less than a few full packets.
    """
    if link is None:
        return {}
    env = {}
    if link.rate is not None:
        env["LAB_LINK_RATE"] = link.rate
        env["LAB_LINK_BURST"] = str(max(16_384, rate_bits(link.rate) // 8 // 250))
    if link.delay is not None:
        env["LAB_LINK_DELAY"] = link.delay
    if link.loss is not None:
        env["LAB_LINK_LOSS"] = link.loss
    return env


def check_workdir(workdir: Path) -> None:
    """Refuse a working directory that hides a part of the image, or lies in one.

    Raises:
        UsageError: with what to do instead.
    """
    path = PurePosixPath(workdir)
    for text in _NEEDED:
        needed = PurePosixPath(text)
        inside = path.is_relative_to(needed) and text not in ("/var", "/home/lab")
        if needed.is_relative_to(path) or inside:
            raise UsageError(
                f"the working directory {workdir} would cover the nodes' own {text} when it is "
                "mounted there: change to a folder of your own, such as one in your home directory"
            )


def memory_limit(text: str | None) -> int | None:
    """Bytes of a limit, as Docker's API takes them."""
    return memory_bytes(text) if text is not None else None


def lab_network(topology: Topology) -> Network:
    """The network of a topology; with a subnet of its own where nodes have explicit addresses.

    Raises:
        UsageError: the addresses do not lie in one private IPv4 network.
    """
    explicit = _explicit(topology)
    if not explicit:
        return Network(internal=not topology.docker.internet, subnet=None, gateway=None)
    subnet = _subnet(topology, explicit)
    taken = set(_addresses(topology).values())
    gateway = next(str(host) for host in subnet.hosts() if str(host) not in taken)
    return Network(internal=not topology.docker.internet, subnet=str(subnet), gateway=gateway)


def _is_ip(address: str) -> bool:
    try:
        ipaddress.ip_address(address)
    except ValueError:
        return False
    return True


def _explicit(topology: Topology) -> dict[str, ipaddress.IPv4Address]:
    found = {}
    for node in topology.nodes:
        if node.address is None or not _is_ip(node.address):
            continue
        address = ipaddress.ip_address(node.address)
        if not isinstance(address, ipaddress.IPv4Address) or not address.is_private:
            raise UsageError(
                f"nodes: {node.name}: address {node.address}: nodes in containers take private "
                "IPv4 addresses, such as 10.5.0.10; leave it out to have one given"
            )
        found[node.name] = address
    return found


def _subnet(
    topology: Topology, explicit: Mapping[str, ipaddress.IPv4Address]
) -> ipaddress.IPv4Network:
    """The smallest network from /24 up that holds all addresses, with room for all nodes."""
    first, *others = explicit.values()
    for prefix in range(24, _WIDEST - 1, -1):
        subnet = ipaddress.IPv4Network(f"{first}/{prefix}", strict=False)
        room = subnet.num_addresses - 3  # the network itself, broadcast, the gateway
        if room < topology.nnodes or any(other not in subnet for other in others):
            continue
        ends = {subnet.network_address, subnet.broadcast_address}
        if not ends & set(explicit.values()):
            return subnet
    raise UsageError(
        f"the nodes' addresses do not lie in one network of /{_WIDEST} or smaller, which nodes in "
        "containers share: give them addresses such as 10.5.0.10, 10.5.0.11"
    )


def _addresses(topology: Topology) -> dict[str, str]:
    """The IP address of each node where any has one: the others take free ones from the end."""
    explicit = _explicit(topology)
    if not explicit:
        return {}
    free = (
        str(host)
        for host in reversed(list(_subnet(topology, explicit).hosts()))
        if host not in explicit.values()
    )
    return {
        node.name: str(explicit[node.name]) if node.name in explicit else next(free)
        for node in topology.nodes
    }
