"""How nodes without a controller find each other and learn each other's end: through files.

They share one folder, the mounted working directory. node0 opens the run; files of an earlier run
cannot be taken for this one's, since every node makes up a word of its own (a nonce) when it starts
and believes only a run that repeats it.

    runs/.meeting/<node>.ready      this node is here, and its nonce
    runs/.meeting/start.json        from the first node: the run's id, and all nonces
    runs/<id>/<node>/alive          touched every second
    runs/<id>/<node>/failures.json  what failed there, as it happens
    runs/<id>/<node>/ended.json     all ranks there have ended
    runs/<id>/verdict.json          from the first node: how the run ended
"""

import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

POLL = 0.1
BEAT = 1.0
LOST_AFTER = 20.0
"""Seconds without a sign of life after which a node counts as lost."""
GATHER_TIMEOUT = 300.0
"""Seconds for all nodes to come: Compose may still be starting them."""


class MeetingError(Exception):
    """The nodes did not find together."""


def write_whole(path: Path, data: Any) -> None:
    """Write JSON so that a reader sees all of it or none."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(2)}")
    temporary.write_text(json.dumps(data))
    temporary.replace(path)


def read(path: Path) -> Any:
    """The JSON of a file; None where there is none (yet)."""
    with contextlib.suppress(OSError, ValueError):
        return json.loads(path.read_text())
    return None


def meet(runs: Path, node: str, nodes: Sequence[str], say: Callable[[str], None]) -> Path:
    """Wait for all nodes; returns the directory of the run that they begin together.

    Raises:
        MeetingError: some did not come.
    """
    folder = runs / ".meeting"
    folder.mkdir(parents=True, exist_ok=True)
    if node == nodes[0]:
        return _open_run(runs, folder, nodes, say)
    return _join_run(runs, folder, node, nodes[0], say)


def _open_run(runs: Path, folder: Path, nodes: Sequence[str], say: Callable[[str], None]) -> Path:
    for old in [folder / "start.json", *folder.glob("*.ready")]:
        old.unlink(missing_ok=True)  # the living write theirs again
    nonces: dict[str, str] = {}
    waiting = _Wait(say)
    while missing := [name for name in nodes[1:] if name not in nonces]:
        waiting.for_("for " + ", ".join(missing))
        for name in missing:
            nonce = read(folder / f"{name}.ready")
            if nonce is not None:
                nonces[name] = nonce
    run = runs / f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-compose-{secrets.token_hex(2)}"
    for name in nodes:
        (run / name).mkdir(parents=True)
    write_whole(folder / "start.json", {"run": run.name, "nonces": nonces})
    return run


def _join_run(runs: Path, folder: Path, node: str, first: str, say: Callable[[str], None]) -> Path:
    nonce = secrets.token_hex(8)
    ready = folder / f"{node}.ready"
    waiting = _Wait(say)
    while True:
        if read(ready) != nonce:  # the first node has cleared away what it found
            write_whole(ready, nonce)
        start = read(folder / "start.json")
        if start is not None and start["nonces"].get(node) == nonce:
            ready.unlink(missing_ok=True)
            return runs / str(start["run"])
        waiting.for_(f"for {first} to begin")


class _Wait:
    """Waits a little each time; says for what once it takes long; gives up some time."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._began = time.monotonic()
        self._said = self._began

    def for_(self, what: str) -> None:
        now = time.monotonic()
        if now - self._began > GATHER_TIMEOUT:
            raise MeetingError(f"waited {GATHER_TIMEOUT:.0f} s {what}: start all nodes together")
        if now - self._said > 5:
            self._said = now
            self._say(f"waiting {what}")
        time.sleep(POLL)


class RunBoard:
    """What the nodes of one run tell each other in its directory."""

    def __init__(self, run: Path, node: str, nodes: Iterable[str]) -> None:
        self.path = run
        self._own = run / node
        self._others = {name: run / name for name in nodes if name != node}
        self._beaten = 0.0
        self._signs: dict[str, tuple[int, float]] = {}

    def beat(self) -> None:
        """Give a sign of life, now and then."""
        if time.monotonic() - self._beaten > BEAT:
            self._beaten = time.monotonic()
            (self._own / "alive").write_text(str(time.time_ns()))

    def lost(self) -> list[str]:
        """Nodes that have given no sign of life for long, and have not ended.

        Measured by this node's own clock, which stands still while the machine sleeps.
        """
        now = time.monotonic()
        gone = []
        for name, folder in self._others.items():
            if (folder / "ended.json").exists():
                continue
            with contextlib.suppress(OSError):
                sign = (folder / "alive").stat().st_mtime_ns
                if sign != self._signs.get(name, (None, 0.0))[0]:
                    self._signs[name] = (sign, now)
            if now - self._signs.setdefault(name, (0, now))[1] > LOST_AFTER:
                gone.append(name)
        return gone

    def report(self, failures: Sequence[dict[str, Any]]) -> None:
        """Tell the others what failed here."""
        write_whole(self._own / "failures.json", list(failures))

    def failures_of_others(self) -> list[dict[str, Any]]:
        """What the other nodes have told of."""
        return _failures(self._others.values())

    def failures(self) -> list[dict[str, Any]]:
        """All failures that have been told, in the order of their happening."""
        found = _failures([self._own, *self._others.values()])
        return sorted(found, key=lambda failure: float(failure["at"]))

    def end(self) -> None:
        """Tell the others that all ranks here have ended."""
        write_whole(self._own / "ended.json", {"at": time.time()})

    def all_ended(self) -> bool:
        """Whether every other node has said so."""
        return all((folder / "ended.json").exists() for folder in self._others.values())


def _failures(folders: Iterable[Path]) -> list[dict[str, Any]]:
    return [failure for folder in folders for failure in read(folder / "failures.json") or ()]
