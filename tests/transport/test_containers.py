"""What the containers of a lab are, without an engine."""

from pathlib import Path

import pytest

from lab.errors import UsageError
from lab.topology import Topology, load_topology
from lab.transport.containers import check_workdir, container, lab_network, lab_spec, link_env

HERE = Path("/home/me/work")


def topology(**fields: object) -> Topology:
    return Topology.model_validate({"name": "t", "nodes": 2, **fields})


def test_every_node_has_its_rank_and_the_common_master() -> None:
    spec = lab_spec(load_topology("quad"), HERE, "image")
    assert [c.node for c in spec.containers] == ["node0", "node1", "node2", "node3"]
    assert [c.env["NODE_RANK"] for c in spec.containers] == ["0", "1", "2", "3"]
    assert {c.env["MASTER_ADDR"] for c in spec.containers} == {"node0"}
    assert len({c.env["MASTER_PORT"] for c in spec.containers}) == 1


def test_two_folders_have_two_labs_and_one_folder_one() -> None:
    quad = load_topology("quad")
    ids = [lab_spec(quad, Path(p), "image").lab_id for p in ("/home/a", "/home/b", "/home/a")]
    assert ids[0] == ids[2] != ids[1]


@pytest.mark.parametrize(
    "changed",
    [{"docker": {"cpus": 1}}, {"docker": {"internet": False}}, {"env": {"A": "1"}}, {"nodes": 3}],
)
def test_whatever_changes_a_node_changes_the_hash(changed: dict[str, object]) -> None:
    assert (
        lab_spec(topology(), HERE, "i").configs != lab_spec(topology(**changed), HERE, "i").configs
    )


def test_another_image_changes_the_hash() -> None:
    assert lab_spec(topology(), HERE, "a").configs != lab_spec(topology(), HERE, "b").configs


def test_the_network_capability_comes_with_a_link_only() -> None:
    plain, linked = topology(), topology(docker={"link": {"rate": "1gbit"}})
    assert "NET_ADMIN" not in container(plain, plain.nodes[0], "i", "/w", ()).cap_add
    assert "NET_ADMIN" in container(linked, linked.nodes[0], "i", "/w", ()).cap_add


def test_a_fast_link_gets_the_burst_that_its_rate_needs() -> None:
    fast = topology(docker={"link": {"rate": "1gbit"}}).docker.link
    slow = topology(docker={"link": {"rate": "1mbit", "delay": "2ms", "loss": "1%"}}).docker.link
    assert link_env(fast) == {"LAB_LINK_RATE": "1gbit", "LAB_LINK_BURST": "500000"}
    assert link_env(slow) == {
        "LAB_LINK_RATE": "1mbit",
        "LAB_LINK_BURST": "16384",
        "LAB_LINK_DELAY": "2ms",
        "LAB_LINK_LOSS": "1%",
    }


@pytest.mark.parametrize(
    "path", ["/", "/usr", "/etc", "/etc/ssl", "/opt", "/opt/venv/lib", "/home", "/var", "/proc/1"]
)
def test_a_folder_that_covers_a_part_of_the_image_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="would cover"):
        check_workdir(Path(path))


@pytest.mark.parametrize("path", ["/root", "/root/x", "/home/me", "/tmp/x", "/opt/x", "/var/x"])
def test_a_folder_of_ones_own_is_not(path: str) -> None:
    check_workdir(Path(path))


def test_addresses_get_a_network_that_holds_them_and_a_gateway_that_is_none_of_them() -> None:
    nodes = [
        {"name": "a", "address": "10.5.0.1"},
        {"name": "b", "address": "10.5.0.2"},
        {"name": "c"},
    ]
    given = topology(nodes=nodes)
    network = lab_network(given)
    assert (network.subnet, network.gateway) == ("10.5.0.0/24", "10.5.0.3")
    ips = [c.ip for c in lab_spec(given, HERE, "i").containers]
    assert ips == ["10.5.0.1", "10.5.0.2", "10.5.0.254"]


def test_addresses_further_apart_get_a_wider_network() -> None:
    nodes = [{"name": "a", "address": "10.5.0.9"}, {"name": "b", "address": "10.5.3.9"}]
    assert lab_network(topology(nodes=nodes)).subnet == "10.5.0.0/22"


@pytest.mark.parametrize("other", ["10.200.0.1", "8.8.8.8", "fd00::1"])
def test_addresses_that_containers_cannot_share_are_refused(other: str) -> None:
    nodes = [{"name": "a", "address": "10.5.0.9"}, {"name": "b", "address": other}]
    with pytest.raises(UsageError, match="addresses"):
        lab_network(topology(nodes=nodes))


def test_an_address_that_is_a_name_becomes_an_alias() -> None:
    named = topology(nodes=[{"name": "a", "address": "a.lab"}, {"name": "b"}])
    spec = lab_spec(named, HERE, "i")
    assert spec.containers[0].aliases == ("a.lab",)
    assert spec.containers[1].env["MASTER_ADDR"] == "a.lab"
    assert spec.network.subnet is None
