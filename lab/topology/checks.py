"""What can be wrong with a topology although each of its fields is right.

These checks look at the input, not at the model, so that they also run where some other field is
wrong, and the user hears of everything at once. They pass over whatever has the wrong type: the
models refuse that.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from lab.topology.expansion import Expansion, NodeProblem
from lab.topology.names import same_place


def cross_problems(data: Mapping[Any, Any], expansion: Expansion) -> Iterator[NodeProblem]:
    """Everything wrong between fields.

    Args:
        data: the topology as given, except that `nodes` is a list of mappings.
        expansion: where these nodes come from.
    """
    if expansion.nodes:
        yield from _duplicates(expansion)
        if not expansion.problems:
            yield from _master(data, expansion)
            yield from _min_nodes(data, expansion)
        yield from _place(data, expansion)


def _get(section: Any, key: str) -> Any:
    """A key of a section that may be a mapping, a model, or not there."""
    if isinstance(section, BaseModel):
        return getattr(section, key, None)
    return section.get(key) if isinstance(section, Mapping) else None


def _duplicates(expansion: Expansion) -> Iterator[NodeProblem]:
    """No two nodes may share a name, an address, or one's address be the other's name."""
    names: dict[str, int] = {}
    places: dict[str, int] = {}
    for index, node in enumerate(expansion.nodes):
        name, address = node.get("name"), node.get("address")
        if isinstance(name, str):
            first = names.setdefault(same_place(name), index)
            if first != index:
                where = _entry(expansion, first)
                allowed = f"must be unique, and {where} has that name"
                yield NodeProblem(expansion.place(index, "name"), name, allowed)
                continue
        reached_by = address if isinstance(address, str) else name
        if isinstance(reached_by, str):
            first = places.setdefault(same_place(reached_by), index)
            if first != index:
                allowed = f"must be unique, and {_entry(expansion, first)} is reached by it too"
                yield NodeProblem(expansion.place(index, "address"), reached_by, allowed)


def _entry(expansion: Expansion, index: int) -> str:
    place = expansion.place(index)
    return f"nodes[{place[1]}]" if len(place) > 1 else f"'{expansion.nodes[index]['name']}'"


def _master(data: Mapping[Any, Any], expansion: Expansion) -> Iterator[NodeProblem]:
    addr = _get(data.get("master"), "addr")
    if not isinstance(addr, str):
        return
    first, *others = expansion.nodes
    known = [text for text in (first.get("name"), first.get("address")) if isinstance(text, str)]
    if not known or same_place(addr) in map(same_place, known):
        return
    allowed = (
        f"must be the first node's name or address ({' or '.join(known)}): "
        "rank 0 runs there and hosts the rendezvous"
    )
    for node in others:
        if same_place(addr) in (
            same_place(text)
            for text in (node.get("name"), node.get("address"))
            if isinstance(text, str)
        ):
            allowed += f"; to meet on {node.get('name')}, put it first in `nodes`"
            break
    else:
        allowed += "; and this is none of the nodes"
    yield NodeProblem(("master", "addr"), addr, allowed)


def _min_nodes(data: Mapping[Any, Any], expansion: Expansion) -> Iterator[NodeProblem]:
    fewest = data.get("min_nodes")
    if not isinstance(fewest, int) or isinstance(fewest, bool):
        return
    if data.get("on") != "slurm":
        yield NodeProblem(
            ("min_nodes",), fewest, "must be left out unless the topology is on slurm"
        )
    elif fewest > len(expansion.nodes):
        most = len(expansion.nodes)
        yield NodeProblem(("min_nodes",), fewest, f"must be at most the number of nodes, {most}")


def _place(data: Mapping[Any, Any], expansion: Expansion) -> Iterator[NodeProblem]:
    """What only containers cannot do."""
    if data.get("on", "docker") != "docker":
        return
    for index, node in enumerate(expansion.nodes):
        if isinstance(name := node.get("name"), str) and name.casefold() == "localhost":
            allowed = "must be another name: inside a container it means the container itself"
            yield NodeProblem(expansion.place(index, "name"), name, allowed)
    if data.get("backend") != "nccl":
        return
    gpus = _get(data.get("docker"), "gpus")
    if gpus is None:
        allowed = (
            "must be gloo or auto, since these docker nodes have no GPUs; where this machine has "
            "some, give them to the nodes with docker.gpus (a number or all)"
        )
        yield NodeProblem(("backend",), "nccl", allowed)
    elif isinstance(gpus, int) and not isinstance(gpus, bool):
        slots = [node.get("slots", data.get("slots", 1)) for node in expansion.nodes]
        most = max((n for n in slots if isinstance(n, int)), default=0)
        if most > gpus:
            allowed = f"must be at least {most}: nccl wants a GPU for each of a node's ranks"
            yield NodeProblem(("docker", "gpus"), gpus, allowed)
