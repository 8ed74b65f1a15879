"""Connections that nodes make and measure, on this machine."""

import socket
import threading
from collections.abc import Iterator

import pytest

from lab.node import links

HERE = "127.0.0.1"


@pytest.fixture
def listener() -> Iterator[links.Listener]:
    made = links.Listener("node7", "token")
    yield made
    made.close()


def test_who_is_there_and_what_time_it_is(listener: links.Listener) -> None:
    answer = links.greet(HERE, listener.port, "token")
    assert answer["who"] == "node7"
    assert abs(answer["clock_ahead"]) <= answer["clock_unsure"]


def test_a_stranger_is_told_nothing(listener: links.Listener) -> None:
    assert links.greet(HERE, listener.port, "other") == {"who": ""}


def test_somebody_else_who_listens() -> None:
    with socket.create_server((HERE, 0)) as server:
        server.settimeout(60)

        def answer() -> None:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0 hello there\n")

        threading.Thread(target=answer, daemon=True).start()
        assert links.greet(HERE, server.getsockname()[1], "token") == {"who": ""}


def test_nobody_listens(listener: links.Listener) -> None:
    listener.close()
    assert links.greet(HERE, listener.port, "token") == {"error": "connection refused"}


def test_latency_and_bandwidth_are_measured(listener: links.Listener) -> None:
    assert links.ping(HERE, listener.port, "token")["latency"] > 0
    assert links.push(HERE, listener.port, "token", 0.05)["bandwidth"] > 0


def test_the_port_is_free_afterwards(listener: links.Listener) -> None:
    listener.close()
    again = links.Listener("node7", "token", listener.port)
    assert links.greet(HERE, again.port, "token")["who"] == "node7"
    again.close()
