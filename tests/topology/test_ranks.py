"""Ranks by prefix sums, and the formula for equal slots."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.topology import Node, Topology, parse_topology

SLOTS = st.lists(st.integers(1, 9), min_size=1, max_size=40)


def cluster(slots: list[int]) -> Topology:
    nodes = [{"name": f"n{i}", "slots": s} for i, s in enumerate(slots)]
    return Topology.model_validate({"nodes": nodes})


@given(nodes=st.integers(1, 40), per_node=st.integers(1, 16))
def test_equal_slots_follow_the_formula(nodes: int, per_node: int) -> None:
    topology = Topology.model_validate({"nodes": nodes, "slots": per_node})
    assert topology.world_size == nodes * per_node
    for rank in topology.ranks():
        assert rank.rank == rank.node_rank * per_node + rank.local_rank
        assert rank.local_world_size == per_node


@given(SLOTS)
def test_ranks_are_the_slots_in_order(slots: list[int]) -> None:
    topology = cluster(slots)
    expected = [(node, local) for node, n in enumerate(slots) for local in range(n)]
    ranks = topology.ranks()
    assert [rank.rank for rank in ranks] == list(range(sum(slots)))
    assert [(rank.node_rank, rank.local_rank) for rank in ranks] == expected
    assert all(rank.rank == sum(slots[: rank.node_rank]) + rank.local_rank for rank in ranks)
    assert all(rank.node is topology.nodes[rank.node_rank] for rank in ranks)


@given(SLOTS)
def test_a_single_rank_is_found_as_in_the_whole(slots: list[int]) -> None:
    topology = cluster(slots)
    assert tuple(topology.rank(number) for number in range(sum(slots))) == topology.ranks()


@pytest.mark.parametrize("number", [-1, 4])
def test_there_is_no_rank_outside_the_world(number: int) -> None:
    with pytest.raises(IndexError, match="world of 4"):
        parse_topology("nodes: 4").rank(number)


def test_a_node_knows_its_rank() -> None:
    topology = parse_topology("nodes: [b, a, c]")
    assert [topology.node_rank(name) for name in ("a", "b", "c")] == [1, 0, 2]
    assert topology.master_node == Node(name="b")
    with pytest.raises(KeyError):
        topology.node_rank("d")
