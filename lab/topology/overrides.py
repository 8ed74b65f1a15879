"""`--nodes`, `--slots`, `--on` and `--backend`: the topology of a file with parts exchanged."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lab.topology.errors import Problem, TopologyError
from lab.topology.expansion import Expansion, expand_nodes
from lab.topology.models import Topology
from lab.topology.nodeset import continue_set, expand_names

SHOWN = 8
"""Names of nodes that a message lists."""


@dataclass(frozen=True)
class Overrides:
    """What the command line says about the topology; None where it says nothing."""

    nodes: str | int | None = None
    """A count, a node set, or on slurm a range of counts."""
    slots: int | None = None
    """Ranks on every node, also on those that say otherwise themselves."""
    on: str | None = None
    """The place to run."""
    backend: str | None = None
    """The collective backend."""

    @property
    def given(self) -> dict[str, Any]:
        """The options that were given, by field."""
        return {name: value for name, value in vars(self).items() if value is not None}


def apply_overrides(
    topology: Topology, written: Mapping[str, Any], overrides: Overrides
) -> dict[str, Any]:
    """The input for a `Topology` that has the overrides in it.

    `--nodes` follows these rules. A count takes the first so many nodes of the topology. A larger
    count goes on counting where the topology has a count or a set of one range (`node[0-3]` and 8
    give node0 to node7), and is an error where it names its nodes one by one. A node set takes the
    nodes it names, those that the topology describes with address, slots and all. One name alone
    must be a node's, but for a host's on ssh.

    Args:
        topology: what the file says.
        written: the same as it was written, to see what `nodes` looked like.
        overrides: what the command line says.

    Raises:
        TopologyError: `--nodes` asks for more nodes than can be named, or is a word that is none.
    """
    data: dict[str, Any] = {key: getattr(topology, key) for key in topology.model_fields_set}
    data.update(overrides.given)
    slurm = data.get("on") == "slurm"
    if not slurm:
        data.pop("min_nodes", None)  # a matter between the topology and Slurm
    nodes: Any = list(topology.nodes)
    if overrides.nodes is not None:
        wanted = expand_nodes(overrides.nodes, slurm=slurm)
        if wanted.problems:
            nodes = overrides.nodes  # for validation to refuse, in one place and wording
        else:
            if not wanted.counted and data.get("on") != "ssh":  # any host may be meant
                _refuse_a_word(topology, wanted)
            nodes = _choose(topology, written.get("nodes"), wanted)
            data["min_nodes"] = wanted.min_nodes
    if overrides.slots is not None and isinstance(nodes, list):
        nodes = [
            {key: item for key, item in dict(node).items() if key != "slots"} for node in nodes
        ]
    data["nodes"] = nodes
    return data


def _refuse_a_word(topology: Topology, wanted: Expansion) -> None:
    """Raise TopologyError where `--nodes` is one name, and that of no node: `two`, say.

    A list or set of names, of which some are new, is meant as it stands.
    """
    names = [node.name for node in topology.nodes]
    word = wanted.nodes[0]["name"]
    if len(wanted.nodes) > 1 or word in names:
        return
    shown = ", ".join(names[:SHOWN]) + ", ..." * (len(names) > SHOWN)
    allowed = "must be a count or nodes of the topology, and it is neither; the nodes are " + shown
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.7)
    raise TopologyError([Problem("--nodes", None, "", f"'{word}'", allowed, *near)])


def _choose(topology: Topology, written: Any, wanted: Expansion) -> list[Any]:
    """The nodes that `--nodes` means, as models where the topology describes them."""
    count = len(wanted.nodes)
    if not wanted.counted:
        described = {node.name: node for node in topology.nodes}
        return [described.get(node["name"], node) for node in wanted.nodes]
    if count <= topology.nnodes:
        return list(topology.nodes[:count])
    if expand_nodes(written, slurm=True).counted:
        return wanted.nodes
    longer = continue_set(written, count) if isinstance(written, str) else None
    if longer is None:
        allowed = (
            f"must be at most {topology.nnodes}, since the topology names its nodes one by one; "
            "name the others too: --nodes 'a,b,c'"
        )
        raise TopologyError([Problem("--nodes", None, "", str(count), allowed)])
    return [{"name": name} for name in expand_names(longer)]
