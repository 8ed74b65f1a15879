"""An engine that refuses what it is asked: a line, whatever the call."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from docker.errors import APIError, NotFound

from lab.errors import LabError
from lab.transport.engine import connect
from lab.transport.image import chosen_requirements, ensure_image, forget_requirements
from lab.transport.labs import find_labs
from tests.conftest import Lab


class Refusing(http.server.BaseHTTPRequestHandler):
    """Says its version, and no to all else."""

    def do_GET(self) -> None:
        if self.path.endswith("/version"):
            self._answer(200, {"ApiVersion": "1.44"})
        elif "gone" in self.path:
            self._answer(404, {"message": "No such image: gone"})
        else:
            self._answer(500, {"message": "layer store is\n corrupt\n"})

    def _answer(self, code: int, body: object) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_arguments: object) -> None:
        """Nothing to the tests' output."""


@pytest.fixture
def engine() -> Iterator[str]:
    """The address of one, as DOCKER_HOST takes it."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"tcp://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    "ask",
    [
        find_labs,
        lambda client: ensure_image(client, lambda _step: None),
        lambda client: chosen_requirements(client, Path("/somewhere")),
        lambda client: forget_requirements(client, Path("/somewhere")),
    ],
)
def test_a_refusal_is_an_error_of_ours(
    ask: Callable[[object], object], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine)
    with pytest.raises(LabError) as caught:
        ask(connect())
    assert str(caught.value) == "the Docker engine refuses: layer store is corrupt"
    assert isinstance(caught.value, APIError)


def test_what_is_not_there_can_be_told_apart(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", engine)
    with pytest.raises(NotFound) as caught:
        connect().images.get("gone")
    assert isinstance(caught.value, LabError)
    assert str(caught.value) == "the Docker engine refuses: No such image: gone"


@pytest.mark.parametrize("command", [["ps"], ["gc"], ["up"], ["down"], ["build"]])
def test_commands_end_with_one_line(command: list[str], engine: str, lab: Lab) -> None:
    done = lab(*command, env={"DOCKER_HOST": engine})
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "lab: error: the Docker engine refuses: layer store is corrupt"
    )
    assert "Traceback" not in done.stderr
