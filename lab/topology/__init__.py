"""What the cluster is: nodes, slots, ranks, and the file that says so."""

from lab.topology.dump import dump_topology
from lab.topology.errors import Problem, TopologyError
from lab.topology.load import load_topology, parse_topology
from lab.topology.models import Node, Place, Topology
from lab.topology.options import (
    DockerOptions,
    JobOptions,
    Link,
    Master,
    SshOptions,
)
from lab.topology.ranks import Rank
from lab.topology.slurm import SlurmOptions
from lab.topology.source import PRESETS, SLURM_LAB, SSH_LAB, written_folder

__all__ = [
    "PRESETS",
    "SLURM_LAB",
    "SSH_LAB",
    "DockerOptions",
    "JobOptions",
    "Link",
    "Master",
    "Node",
    "Place",
    "Problem",
    "Rank",
    "SlurmOptions",
    "SshOptions",
    "Topology",
    "TopologyError",
    "dump_topology",
    "load_topology",
    "parse_topology",
    "written_folder",
]
