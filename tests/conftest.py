"""Fixtures that start real things, and end them whatever happens."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.ranks import RankPool

COMMAND = ["-P", "-m", "lab"]
CI = os.environ.get("CI") == "true"


def _engine_answers() -> bool:
    from lab.transport.docker import engine_answers

    return engine_answers()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the docker tests out where no engine is, except under CI, where they fail."""
    marked = [item for item in items if item.get_closest_marker("docker")]
    if marked and not CI and not _engine_answers():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="no Docker engine answers"))


@pytest.hookimpl(tryfirst=True)
def pytest_keyboard_interrupt() -> None:
    """Have another Ctrl-C wait for the fixtures, which end what they started; a third one does not.

    A worker of xdist leaves the third one to whoever started it.
    """

    def wait(_number: int, _frame: object) -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.write(2, b"\nending what the tests have started; Ctrl-C again leaves it running\n")

    is_worker = "PYTEST_XDIST_WORKER" in os.environ
    signal.signal(signal.SIGINT, signal.SIG_IGN if is_worker else wait)


class Lab:
    """The `lab` command, as a user calls it in one folder."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        self._processes: list[subprocess.Popen[str]] = []

    def start(
        self,
        *argv: str,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.Popen[str]:
        """Start it in a session of its own, so that the test can signal it alone."""
        process = subprocess.Popen(
            [sys.executable, *COMMAND, *argv],
            cwd=self.cwd,
            env={**os.environ, "COLUMNS": "200", **(env or {})},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def __call__(
        self,
        *argv: str,
        timeout: float = 120,
        env: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> subprocess.CompletedProcess[str]:
        """Run it to its end."""
        process = self.start(*argv, env=env, stdin=stdin)
        out, err = process.communicate(timeout=timeout)
        return subprocess.CompletedProcess(argv, process.returncode, out, err)

    def script(self, text: str, name: str = "script.py") -> str:
        """Write a script into the folder; its name."""
        path = self.cwd / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return name

    def runs(self) -> list[Path]:
        """The run directories, oldest first."""
        return sorted((self.cwd / "runs").glob("*"), key=_when_created)

    def end(self) -> None:
        """End whatever still runs: with the controller its agents and ranks end too."""
        for process in self._processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(15)
                process.kill()
            process.communicate()


def _when_created(run: Path) -> tuple[str, str]:
    """Names tell the second only, and a run may follow another within one."""
    state = run / "state.json"
    return (json.loads(state.read_text())["created"] if state.exists() else run.name, run.name)


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """`lab` in an empty folder."""
    command = Lab(tmp_path)
    try:
        yield command
    finally:
        command.end()


@pytest.fixture(scope="session")
def ranks() -> Iterator[RankPool]:
    """Real ranks in processes of their own: `ranks.run(world_size, function, *args)`."""
    pool = RankPool()
    yield pool
    pool.close()
