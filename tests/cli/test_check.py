"""`lab check`, as a user calls it."""

import json

import pytest

from tests.conftest import Lab


def test_the_preset_quad_as_plain_text(lab: Lab) -> None:
    done = lab("check")
    assert done.returncode == 0
    assert done.stdout == (
        "rank  local rank  node rank  node\n"
        "   0           0          0  node0\n"
        "   1           0          1  node1\n"
        "   2           0          2  node2\n"
        "   3           0          3  node3\n"
        "\n"
        "name    quad\n"
        "nodes   4\n"
        "ranks   4 (1 on each node)\n"
        "where   docker\n"
        "backend gloo (auto)\n"
        "master  node0, port picked free for each run\n"
        "job     -m lab.training.wine --epochs 20\n"
    )


def test_the_topology_may_be_named_as_with_other_commands(lab: Lab) -> None:
    assert lab("check", "-t", "pair").stdout == lab("check", "pair").stdout
    rendered = lab("render", "--as", "env", "-t", "pair")
    assert rendered.stdout == lab("render", "--as", "env", "pair").stdout != ""
    twice = lab("check", "pair", "-t", "quad")
    assert (twice.returncode, twice.stdout) == (2, "")
    assert "pair and -t quad: name one topology" in twice.stderr


def test_unequal_nodes_with_long_addresses_are_shown_whole(lab: Lab) -> None:
    address = ".".join(["x" * 60] * 4)
    nodes = f"nodes: [{{name: a, address: {address}, slots: 3}}, b]"
    lab.script(f"{nodes}\nmaster: {{port: 4711}}\nbackend: gloo\n", "lab.yaml")
    lines = lab("check").stdout.splitlines()
    assert lines[3] == f"   2           2          0  a     {address}"
    assert lines[4] == "   3           0          1  b"
    assert "ranks   4 (as the nodes say)" in lines
    assert "backend gloo" in lines
    assert f"master  {address}, port 4711" in lines


def test_of_many_ranks_the_first_and_the_last_are_shown(lab: Lab) -> None:
    lines = lab("check", "quad", "--nodes", "10000", "--slots", "8").stdout.splitlines()
    numbers = [line.split()[0] for line in lines[1:22]]
    tail = [str(number) for number in range(79_996, 80_000)]
    assert numbers == [*map(str, range(16)), "...", *tail]
    assert lines[17].endswith("(79,980 more)")
    assert "ranks   80,000 (8 on each node)" in lines


@pytest.mark.parametrize("ranks", ["20", "21"])
def test_no_rank_is_missing_where_all_fit(lab: Lab, ranks: str) -> None:
    assert ("more)" in lab("check", "--nodes", ranks).stdout) is (ranks == "21")


def test_json(lab: Lab) -> None:
    shown = json.loads(lab("check", "quad2x2", "--on", "local", "--json").stdout)
    assert shown == {
        "name": "quad2x2",
        "on": "local",
        "nnodes": 2,
        "min_nodes": None,
        "world_size": 4,
        "backend": "gloo",
        "master": {"addr": "node0", "port": None},
        "job": ["-m", "lab.training.wine", "--epochs", "20"],
        "nodes": [
            {"name": "node0", "address": None, "node_rank": 0, "slots": 2, "first_rank": 0},
            {"name": "node1", "address": None, "node_rank": 1, "slots": 2, "first_rank": 2},
        ],
    }


def test_all_that_is_wrong_and_nothing_else(lab: Lab) -> None:
    lab.script("nodes: 2\nslots: 0\nbackned: gloo\n", "lab.yaml")
    done = lab("check")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("lab: error: lab.yaml:2: slots: found 0; must be at least 1\n")
    assert "lab.yaml:3: backned: unknown key; did you mean 'backend'?" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--nodes", "0"), "--nodes: found '0'; must be at least 1"),
        (("--nodes", "-1"), "--nodes: found '-1'; must be at least 1"),
        (("--slots", "-1"), "--slots: found -1; must be at least 1"),
        (("--on", "mars"), "--on: found 'mars'; must be local, docker, ssh or slurm"),
        (("--backend", "nccl"), "--backend: found 'nccl'; must be gloo or auto"),
        (("nowhere.yaml",), "nowhere.yaml: no such file"),
        (("--nodes", "n[1-1000000000]"), "at most 100,000 nodes, and this is 1,000,000,000"),
    ],
)
def test_wrong_options(lab: Lab, argv: tuple[str, ...], words: str) -> None:
    done = lab("check", *argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("lab: error: ")
    assert words in done.stderr
