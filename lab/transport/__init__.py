"""Where nodes are: local processes or docker containers, behind one protocol."""

from pathlib import Path

from lab.errors import UsageError
from lab.topology import Topology
from lab.transport.base import Channel, Progress, Transport

__all__ = ["Channel", "Progress", "Transport", "transport_for"]


def transport_for(topology: Topology, workdir: Path) -> Transport:
    """The transport that the topology's `on` names.

    Raises:
        UsageError: it cannot be driven from here.
        LabError: it is not there (no Docker engine answers).
    """
    if topology.on == "local":
        from lab.transport.local import LocalTransport

        return LocalTransport(topology, workdir)
    if topology.on == "docker":
        from lab.transport.docker import DockerTransport

        return DockerTransport(topology, workdir)
    raise UsageError(f"on: {topology.on} cannot be run yet; use --on docker, or --on local")
