"""Ranks: which node each lives on, by prefix sums over the nodes' slots."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lab.topology.models import Node


@dataclass(frozen=True, slots=True)
class Rank:
    """One process of the world."""

    rank: int
    """Global rank, from 0 to world size - 1."""
    local_rank: int
    """Position among the ranks of its node, from 0; with nccl: the GPU it takes."""
    node_rank: int
    """Position of its node among the nodes, from 0."""
    node: "Node"
    """The node it runs on."""
    local_world_size: int
    """How many ranks its node has."""


def first_ranks(slots: Iterable[int]) -> list[int]:
    """The global rank of each node's local rank 0, and the world size as one item more.

    `global_rank = first_ranks[node_rank] + local_rank`, which for equal slots is
    `node_rank * per_node + local_rank`.
    """
    return list(accumulate(slots, initial=0))


def rank_at(rank: int, nodes: Sequence["Node"], firsts: Sequence[int]) -> Rank:
    """The rank with this global number, in O(log nodes).

    Args:
        rank: global rank.
        nodes: the nodes in node-rank order.
        firsts: `first_ranks` of these nodes.

    Raises:
        IndexError: there is no such rank.
    """
    if not 0 <= rank < firsts[-1]:
        raise IndexError(f"rank {rank} of a world of {firsts[-1]}")
    node_rank = bisect_right(firsts, rank) - 1
    node = nodes[node_rank]
    return Rank(rank, rank - firsts[node_rank], node_rank, node, node.slots)
