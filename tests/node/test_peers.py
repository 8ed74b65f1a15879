"""Whether other nodes are out of reach, or this one is too slow to tell."""

import contextlib
import selectors
import socket
from collections.abc import Iterator

import pytest

from lab.node.peers import UNSURE, Visits


@pytest.fixture
def mute() -> Iterator[int]:
    """A port from which nothing comes: its queue is full."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(full.getsockname())
        yield full.getsockname()[1]


@pytest.fixture
def open_() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def visit(port: int, own_port: int) -> dict[str, str]:
    """What is found of a node, looking as long as something answers, and no longer."""
    with selectors.DefaultSelector() as selector:
        visits = Visits(selector, {"far": ("127.0.0.1", port)}, lambda: None, own_port)
        while not visits.is_over and (ready := selector.select(0.2)):
            for key, _ in ready:
                key.data()
        if not visits.is_over:
            visits.give_up()
        assert not selector.get_map()
        return visits.found


def test_who_answers_is_there(open_: int, mute: int) -> None:
    assert visit(open_, open_) == {"far": "ok"}
    assert visit(open_, mute) == {"far": "ok"}


def test_who_does_not_answer_is_out_of_reach_where_this_node_answers_itself(
    open_: int, mute: int
) -> None:
    assert visit(mute, open_) == {"far": "timeout"}
    assert visit(mute, mute)["far"].startswith(UNSURE)
