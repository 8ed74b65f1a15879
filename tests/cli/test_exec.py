"""`lab exec` at a terminal."""

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
