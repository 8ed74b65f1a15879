"""A Docker engine that stops in mid-run, as its clients see it: through a socket that is cut.

Everything else is real. The engine itself goes on: others use it.
"""

import contextlib
import json
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.transport.engine import connect
from tests.conftest import Lab
from tests.runs.test_docker_runs import things
from tests.runs.test_local_runs import verdict, wait_for_output

pytestmark = pytest.mark.docker

SCRIPT = "print('ready', flush=True)\nimport time; time.sleep(1000)"


class Proxy:
    """A socket that leads to the engine until it is cut, and does again after `listen`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        adapter: Any = connect().api.get_adapter("http+docker://")
        self._engine = str(adapter.socket_path)
        self._open: list[socket.socket] = []
        self.listen()

    @property
    def env(self) -> dict[str, str]:
        return {"DOCKER_HOST": f"unix://{self.path}"}

    def listen(self) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(self._engine)
                self._open += [client, engine]
                for ends in ((client, engine), (engine, client)):
                    threading.Thread(target=self._hand_on, args=ends, daemon=True).start()

    def _hand_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """From now on nobody answers, and all that was connected is not."""
        with contextlib.suppress(OSError):  # it is cut already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.path.unlink(missing_ok=True)
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._open = []


@pytest.fixture
def proxy(lab: Lab) -> Iterator[Proxy]:
    with tempfile.TemporaryDirectory() as folder:  # a socket's path must be short
        made = Proxy(Path(folder) / "docker.sock")
        yield made
        made.cut()
    lab("down", "-t", "pair")
    assert things(lab) == []


def test_an_engine_that_stops_in_mid_run(lab: Lab, proxy: Proxy) -> None:
    running = lab.start("run", "-t", "pair", lab.script(SCRIPT), env=proxy.env)
    wait_for_output(lab, "ready")
    proxy.cut()
    _, err = running.communicate(timeout=60)
    assert running.returncode == 1
    *_, last = err.splitlines()
    assert last.startswith("lab: error: the Docker engine has stopped answering (")
    assert last.endswith("start it again, then lab gc removes what may be left")
    assert "Traceback" not in err
    assert verdict(lab)["kind"] == "lab-error"
    refused = lab("run", "-t", "pair", "script.py", env=proxy.env)
    assert refused.returncode == 1
    assert "no Docker engine answers" in refused.stderr
    shown = json.loads(lab("ps", "--json", env=proxy.env).stdout)
    assert [run["state"] for run in shown["runs"]] == [
        "finished",
        *["finished"] * (len(lab.runs()) - 1),
    ]
    proxy.listen()
    lab("gc", env=proxy.env)
    done = lab("run", "-t", "pair", lab.script("print('works')"), env=proxy.env)
    assert done.returncode == 0, done.stderr


def test_an_interrupt_of_a_run_whose_engine_has_stopped(lab: Lab, proxy: Proxy) -> None:
    """Nothing waits for who does not answer."""
    text = "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SCRIPT
    running = lab.start("run", "-t", "pair", "--grace", "1000", lab.script(text), env=proxy.env)
    wait_for_output(lab, "ready")
    running.send_signal(signal.SIGINT)
    proxy.cut()
    _, err = running.communicate(timeout=60)
    assert running.returncode == 1
    assert "the Docker engine has stopped answering" in err.splitlines()[-1]
    assert "Traceback" not in err
