"""What a valid topology comes out as, from YAML and from Python."""

import ast
import inspect

import pytest
from pydantic import BaseModel, ValidationError

from lab.topology import (
    DockerOptions,
    JobOptions,
    Link,
    Master,
    Node,
    SlurmOptions,
    SshOptions,
    Topology,
    parse_topology,
)

WHOLE = """
name: whole
on: docker
nodes:
  - node0
  - gpu[01-02]
  - {name: big1, address: 10.7.0.9, slots: 8, interface: ib0, cpus: 16, memory: 64GiB}
  - {name: "fat[1-2]", slots: 4, address: }
slots: 2
backend: gloo
master: {addr: node0, port: 29500}
env: {OMP_NUM_THREADS: 1, LR: 1e-4, VERSION: 1.10, MASK: 0x1F, TEXT: "true", EMPTY: ""}
docker:
  cpus: 1
  memory: 2147483648
  shm: 256 MB
  internet: false
  link: {rate: 1 Gbit, delay: 0.5ms, loss: 0.1 %}
ssh: {user: trainer, port: 2222, identity_file: ~/.ssh/id, workdir: ~/lab, python: python3.12}
slurm: {partition: gpu, time: 01:00:00, gpus_per_node: 8, account: a1, extra: [--qos=x, --mem=0]}
job: {script: -m lab.training.wine, args: [--epochs, 20, --lr, 1e-3]}
"""


def test_everything_a_topology_can_say() -> None:
    assert parse_topology(WHOLE) == Topology(
        name="whole",
        on="docker",
        nodes=(
            Node(name="node0", slots=2),
            Node(name="gpu01", slots=2),
            Node(name="gpu02", slots=2),
            Node(
                name="big1",
                address="10.7.0.9",
                slots=8,
                interface="ib0",
                cpus=16,
                memory="64g",
            ),
            Node(name="fat1", slots=4),
            Node(name="fat2", slots=4),
        ),
        slots=2,
        backend="gloo",
        master=Master(addr="node0", port=29500),
        env={
            "OMP_NUM_THREADS": "1",
            "LR": "1e-4",
            "VERSION": "1.10",
            "MASK": "0x1F",
            "TEXT": "true",
            "EMPTY": "",
        },
        docker=DockerOptions(
            cpus=1,
            memory="2g",
            shm="256m",
            internet=False,
            link=Link(rate="1gbit", delay="0.5ms", loss="0.1%"),
        ),
        ssh=SshOptions(
            user="trainer",
            port=2222,
            identity_file="~/.ssh/id",
            workdir="~/lab",
            python="python3.12",
        ),
        slurm=SlurmOptions(
            partition="gpu",
            time="01:00:00",
            gpus_per_node=8,
            account="a1",
            extra=("--qos=x", "--mem=0"),
        ),
        job=JobOptions(script="-m lab.training.wine", args=("--epochs", "20", "--lr", "1e-3")),
    )


def test_nodes_take_the_slots_of_the_topology_unless_they_say_otherwise() -> None:
    topology = parse_topology("slots: 2\nnodes: [a, {name: b, slots: 1}, {name: c}]")
    assert [node.slots for node in topology.nodes] == [2, 1, 2]
    assert topology.world_size == 5


@pytest.mark.parametrize(
    "nodes",
    [
        "4",
        '"4"',
        "node[0-3]",
        '["node[0-3]"]',
        '[{name: "node[0-3]"}]',
        "[node0, node1, node2, node3]",
    ],
)
def test_counts_sets_and_lists_are_the_same(nodes: str) -> None:
    assert parse_topology(f"nodes: {nodes}") == Topology.model_validate({"nodes": 4})


def test_a_range_of_counts_on_slurm() -> None:
    topology = parse_topology("on: slurm\nnodes: 2-4")
    assert (topology.min_nodes, topology.nnodes) == (2, 4)


def test_empty_sections_count_as_left_out() -> None:
    text = "nodes: 1\ndocker:\nssh:\nslurm:\nenv:\nmaster:\njob:"
    assert parse_topology(text) == parse_topology("nodes: 1")


def test_keys_and_words_are_not_yaml_1_1() -> None:
    topology = parse_topology("on: local\nnodes: [no, yes]\nenv: {NO: off}")
    assert topology.on == "local"
    assert [node.name for node in topology.nodes] == ["no", "yes"]
    assert topology.env == {"NO": "off"}


def test_aliases_can_be_used() -> None:
    topology = parse_topology("nodes: [{name: a, slots: &n 3}, {name: b, slots: *n}]")
    assert topology.world_size == 6


@pytest.mark.parametrize(
    ("text", "backend"),
    [
        ("nodes: 2", "gloo"),
        ("nodes: 2\ndocker: {gpus: all}", "nccl"),
        ("nodes: 2\ndocker: {gpus: 1}\nbackend: nccl", "nccl"),
        ("nodes: 2\ndocker: {gpus: all}\nbackend: gloo", "gloo"),
        ("nodes: 2\non: slurm", "gloo"),
        ("nodes: 2\non: slurm\nslurm: {gpus_per_node: 8}", "nccl"),
        ("nodes: 2\non: local\nslurm: {gpus_per_node: 8}", "gloo"),
        ("nodes: 2\non: ssh\nbackend: nccl", "nccl"),
    ],
)
def test_the_backend_is_nccl_only_where_gpus_are_promised(text: str, backend: str) -> None:
    assert parse_topology(text).resolved_backend() == backend


@pytest.mark.parametrize("addr", ["a", "A", "10.0.0.1"])
def test_the_master_may_be_given_by_name_or_address(addr: str) -> None:
    text = f"nodes: [{{name: a, address: 10.0.0.1}}, b]\nmaster: {{addr: {addr}}}"
    assert parse_topology(text).master.addr == addr


def test_a_job_as_words() -> None:
    assert JobOptions(script="-m  a.b", args=("x y",)).argv == ("-m", "a.b", "x y")
    assert JobOptions(script="my script.py").argv == ("my script.py",)


def test_topologies_do_not_change() -> None:
    topology = parse_topology("nodes: 1")
    with pytest.raises(ValidationError, match="frozen"):
        setattr(topology, "name", "other")  # noqa: B010  # plainly, mypy would refuse it


def test_in_python_all_problems_come_as_one_validation_error() -> None:
    with pytest.raises(ValidationError) as caught:
        Topology.model_validate({"nodes": ["a", "a"], "slots": 0, "backned": "gloo"})
    places = [error["loc"] for error in caught.value.errors()]
    assert places == [("slots",), ("backned",), ("nodes", 1, "name")]


@pytest.mark.parametrize(
    "model",
    [Topology, Node, Master, Link, DockerOptions, SshOptions, SlurmOptions, JobOptions],
)
def test_every_field_is_documented(model: type[BaseModel]) -> None:
    """A string below each field, as in the rest of the code; read here since Python drops it."""
    (body,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(body, ast.ClassDef)
    documented = {
        statement.target.id
        for statement, after in zip(body.body, body.body[1:], strict=False)
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
    }
    assert documented == set(model.model_fields)
