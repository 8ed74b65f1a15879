"""`lab exec` and `lab hosts` on containers."""

import json
import sys
from collections.abc import Iterator

import pytest

from tests.cli.test_terminal import terminal
from tests.conftest import COMMAND, Lab

pytestmark = pytest.mark.docker


@pytest.fixture
def pair(lab: Lab) -> Iterator[Lab]:
    """Two nodes that are up."""
    up = lab("up", "-t", "pair", timeout=280)
    try:
        assert up.returncode == 0, up.stderr
        yield lab
    finally:
        lab("down", "-t", "pair")


def test_the_terminal_on_a_node_is_as_large_as_ones_own(pair: Lab) -> None:
    wait = 'until [ "$(stty size)" = "{}" ]; do sleep 0.1; done; echo it is {}'
    script = "; ".join(wait.format(size, size) for size in ("33 101", "40 90"))
    argv = [sys.executable, *COMMAND, "exec", "-t", "pair", "node0", "sh", "-c", script]
    with terminal(argv, pair.cwd, size=(33, 101)) as user:
        user.expect("it is 33 101\n")
        user.resize(40, 90)
        user.expect("it is 40 90\n")
        assert user.wait() == 0


def test_containers_answer_as_one_and_tell_what_they_are(pair: Lab) -> None:
    script = "id -u; pwd; [ $LAB_NODE != node1 ] || exit 4"
    done = pair("exec", "-t", "pair", "--all", "sh", "-c", script)
    names = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert names == ["node0", "node1 (exit code 4)"]
    assert done.stdout.count(f"  {pair.cwd}\n") == 2
    assert done.returncode == 4

    one, two = json.loads(pair("hosts", "-t", "pair", "--json").stdout)
    assert (one["hostname"], two["hostname"]) == ("node0", "node1")
    assert one["cores"] == 1  # what the preset allows, not what the machine has
    assert one["memory"] == 2 << 30
    assert one["torch"].startswith("2.")


def test_some_nodes_of_a_topology_are_all_there_are(lab: Lab) -> None:
    few = ("-t", "pair", "--on", "local", "--nodes", "1")
    done = lab("exec", *few, "--all", "printenv", "LAB_NODE")
    assert (done.returncode, done.stdout) == (0, "node0\n  node0\n"), done.stderr


def test_containers_that_are_not_up_are_said_to_be_so(lab: Lab) -> None:
    done = lab("hosts", "-t", "pair")
    assert done.returncode == 1
    assert "node0: it is not up" in done.stdout
    done = lab("exec", "-t", "pair", "--all", "true")
    assert (done.returncode, done.stdout) == (1, "node[0-1] (exit code 1): it is not up\n")
