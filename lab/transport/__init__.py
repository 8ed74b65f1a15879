"""Where nodes are: local processes, docker containers or SSH hosts, behind one protocol."""

from pathlib import Path

from lab.deploy.requirements import Requirements
from lab.errors import UsageError
from lab.topology import Topology
from lab.transport.base import Transport

__all__ = ["Transport", "transport_for"]


def transport_for(
    topology: Topology, workdir: Path, requirements: Path | None = None, *, deploy: bool = True
) -> Transport:
    """The transport that the topology's `on` names.

    `requirements`: a file of packages that the nodes shall have on top of their own. `deploy`:
    whether hosts are sent the code that they lack; else it is an error if they lack any.

    Raises:
        UsageError: it cannot be driven from here, or the file cannot be taken.
        LabError: it is not there (no Docker engine answers).
    """
    packages = None if requirements is None else Requirements.read(requirements)
    if topology.on == "local":
        from lab.transport.local import LocalTransport

        return LocalTransport(topology, workdir, packages)
    if topology.on == "docker":
        from lab.transport.docker import DockerTransport

        return DockerTransport(topology, workdir, packages)
    if topology.on == "ssh":
        from lab.transport.ssh import SshTransport

        return SshTransport(topology, workdir, packages, deploy=deploy)
    raise UsageError(
        "on: slurm: only jobs reach its hosts, which are Slurm's: lab run, submit, prove "
        "or doctor (the cluster to rehearse on comes and goes by its name: lab down -t slurm-lab)"
    )
