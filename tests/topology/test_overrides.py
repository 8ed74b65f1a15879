"""--nodes, --slots, --on and --backend."""

from pathlib import Path

import pytest

from lab.topology import TopologyError, load_topology

LISTED = """\
nodes:
  - {name: a, address: 10.0.0.1, slots: 4}
  - {name: b, address: 10.0.0.2}
  - c
slots: 2
"""


@pytest.fixture
def listed(tmp_path: Path) -> str:
    path = tmp_path / "listed.yaml"
    path.write_text(LISTED)
    return str(path)


def test_a_smaller_count_keeps_the_first_nodes(listed: str) -> None:
    topology = load_topology(listed, nodes=2)
    assert [(n.name, n.address, n.slots) for n in topology.nodes] == [
        ("a", "10.0.0.1", 4),
        ("b", "10.0.0.2", 2),
    ]


def test_a_larger_count_needs_names(listed: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology(listed, nodes="4")
    assert str(caught.value) == (
        "--nodes: found 4; must be at most 3, since the topology names its nodes one by one; "
        "name the others too: --nodes 'a,b,c'"
    )


def test_a_set_takes_the_nodes_it_names(listed: str) -> None:
    topology = load_topology(listed, nodes="b,a,new")
    assert [(n.name, n.address, n.slots) for n in topology.nodes] == [
        ("b", "10.0.0.2", 2),
        ("a", "10.0.0.1", 4),
        ("new", None, 2),
    ]


@pytest.mark.parametrize("place", ["local", "docker", "slurm"])
def test_a_word_that_is_no_node_is_refused(place: str, listed: str) -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology(listed, nodes="two", on=place)
    assert str(caught.value) == (
        "--nodes: found 'two'; must be a count or nodes of the topology, and it is neither; "
        "the nodes are a, b, c"
    )
    with pytest.raises(TopologyError, match="node2, node3; did you mean 'node1'"):
        load_topology("quad", nodes="nod1", on=place)
    assert load_topology(listed, nodes="b", on=place).nnodes == 1


def test_a_word_may_be_a_host(listed: str) -> None:
    assert [node.name for node in load_topology(listed, nodes="two", on="ssh").nodes] == ["two"]


@pytest.mark.parametrize("preset", ["solo", "quad"])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_counts_and_sets_of_one_range_go_on_counting(preset: str, count: int) -> None:
    topology = load_topology(preset, nodes=count)
    assert [node.name for node in topology.nodes] == [f"node{i}" for i in range(count)]
    assert topology.docker == load_topology(preset).docker


def test_slots_hold_for_every_node(listed: str) -> None:
    topology = load_topology(listed, slots=3)
    assert [node.slots for node in topology.nodes] == [3, 3, 3]
    assert topology.nodes[0].address == "10.0.0.1"


def test_all_at_once() -> None:
    topology = load_topology("quad", nodes="2", slots=2, on="local", backend="gloo")
    assert (topology.nnodes, topology.world_size) == (2, 4)
    assert (topology.on, topology.backend) == ("local", "gloo")


def test_a_range_of_counts_belongs_to_slurm(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("on: slurm\nnodes: 2-4\n")
    assert load_topology(str(path), nodes="3-8").min_nodes == 3
    assert load_topology(str(path), nodes="3").min_nodes is None
    rehearsal = load_topology(str(path), on="docker")
    assert (rehearsal.nnodes, rehearsal.min_nodes) == (4, None)
    assert load_topology("quad", on="slurm", nodes="2-3").min_nodes == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": "0"}, "--nodes: found '0'; must be at least 1"),
        ({"nodes": "-1"}, "--nodes: found '-1'; must be at least 1"),
        ({"nodes": 0}, "--nodes: found 0; must be at least 1"),
        ({"nodes": ""}, "--nodes: found ''; must be a node set such as node[0-3]"),
        ({"nodes": "node[0-3"}, "--nodes: found 'node[0-3'; must be a node set"),
        ({"nodes": "2-4"}, "--nodes: found '2-4'; must be one number: only slurm takes"),
        ({"nodes": "node_1"}, "--nodes: found 'node_1'; must be a count or nodes of the topology"),
        ({"nodes": "node_1,b"}, "--nodes: found 'node_1'; must be a host name (RFC 1123)"),
        ({"nodes": "2.5"}, "--nodes: found '2.5'; must be a count or nodes of the topology"),
        ({"nodes": "1000000000"}, "--nodes: found '1000000000'; must be at most 100,000 nodes"),
        ({"nodes": "n[1-1000000000]"}, "must be at most 100,000 nodes, and this is 1,000,000,000"),
        ({"slots": 0}, "--slots: found 0; must be at least 1"),
        ({"slots": -1}, "--slots: found -1; must be at least 1"),
        ({"slots": 2000}, "--slots: found 2000; must be at most 1024"),
        ({"on": "mars"}, "--on: found 'mars'; must be local, docker, ssh or slurm"),
        ({"on": "dcoker"}, "must be local, docker, ssh or slurm; did you mean 'docker'?"),
        ({"backend": "ncll"}, "--backend: found 'ncll'; must be auto, gloo or nccl; did you mean"),
        ({"backend": "nccl"}, "--backend: found 'nccl'; must be gloo or auto, since these docker"),
    ],
)
def test_a_wrong_option_is_named_instead_of_a_line(
    options: dict[str, str | int], message: str
) -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology("quad", **options)  # type: ignore[arg-type]  # each value fits its name
    assert message in str(caught.value)
    assert "yaml" not in str(caught.value)


def test_all_wrong_options_are_named() -> None:
    with pytest.raises(TopologyError) as caught:
        load_topology("quad", nodes="0", slots=0, on="mars", backend="x")
    places = [problem.file for problem in caught.value.problems]
    assert sorted(map(str, places)) == ["--backend", "--nodes", "--on", "--slots"]


def test_what_an_option_makes_wrong_in_the_file_has_its_line(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("on: ssh\nnodes: [a, b]\nbackend: nccl\nmaster: {addr: a}\n")
    with pytest.raises(TopologyError) as caught:
        load_topology(str(path), on="docker", nodes="b")
    first, second = sorted(str(problem) for problem in caught.value.problems)
    assert first.startswith(f"{path}:3: backend: found 'nccl'; must be gloo or auto")
    assert second.startswith(f"{path}:4: master.addr: found 'a'; must be the first node's name")


def test_a_wrong_file_is_not_put_right_by_options(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("nodes: 2\nslots: 0\n")
    with pytest.raises(TopologyError, match=r"t\.yaml:2: slots: found 0"):
        load_topology(str(path), slots=1)
