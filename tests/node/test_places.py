"""Which rank is where, as a scheduler's job has it."""

from lab.node.places import places


def test_ranks_fill_one_node_after_another() -> None:
    nodes = {"names": ["a", "b", "c"], "slots": [2, 1, 1]}
    assert places(nodes) == {0: "a", 1: "a", 2: "b", 3: "c"}
