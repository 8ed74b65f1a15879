"""Labs that are there, seen from the engine alone: what `lab ps` lists.

Everything lab makes carries labels, so this needs no topology file, no state of its own, and finds
what a controller left that was killed.
"""

import contextlib
import fcntl
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.transport.containers import LABEL
from lab.transport.engine import api_errors, connect
from lab.transport.making import at_once
from lab.transport.run_state import RunState, run_state

if TYPE_CHECKING:
    from docker import DockerClient


@dataclass(frozen=True)
class LabNode:
    """One container of a lab."""

    name: str
    rank: int
    state: str
    """The engine's word: running, exited, created, paused."""
    container_id: str
    config: str


@dataclass
class Lab:
    """A lab as it is, which may be less than a whole one."""

    id: str
    topology: str
    workdir: Path
    host: str
    """The machine that `workdir` is on."""
    expected: int
    """How many nodes it should have."""
    run: str | None
    """The run that brought it up, if none of `lab up` did. The nodes stay when it ends."""
    created: float = 0.0
    """Seconds since the epoch; 0 where there is only a network."""
    nodes: list[LabNode] = field(default_factory=list)
    networks: list[str] = field(default_factory=list)
    """Ids of its networks: one, or several after a crash at a bad moment."""

    @property
    def complete(self) -> bool:
        """Whether all nodes run."""
        running = sum(node.state == "running" for node in self.nodes)
        return running == self.expected == len(self.nodes) and len(self.networks) == 1

    @property
    def ours(self) -> bool:
        """Whether its working directory is on this machine, so that we can look at it."""
        return self.host == platform.node()

    @property
    def state(self) -> str:
        """`up` where all nodes run, else how many do."""
        running = sum(node.state == "running" for node in self.nodes)
        return "up" if self.complete else f"{running} of {self.expected} nodes"

    def to_json(self) -> dict[str, Any]:
        """Plain data; `created` in ISO 8601, null where there is only a network."""
        created = datetime.fromtimestamp(self.created, UTC).isoformat(timespec="seconds")
        return {
            "id": self.id,
            "topology": self.topology,
            "state": self.state,
            "run": self.run,
            "created": created if self.created else None,
            "workdir": str(self.workdir),
            "nodes": [{"name": n.name, "rank": n.rank, "state": n.state} for n in self.nodes],
        }

    def run_state(self) -> RunState | None:
        """Where the run stands that brought it up; None: there is none, or nobody can say."""
        if self.run is None or not self.ours:
            return None
        try:
            return run_state(self.workdir / "runs" / self.run)
        except PermissionError:
            return "running"  # another user's: not ours to judge


def list_labs() -> list[dict[str, Any]]:
    """All labs on the engine, oldest first, as plain data: see `Lab.to_json`.

    Raises:
        LabError: no engine answers.
    """
    return [lab.to_json() for lab in find_labs(connect())]


def find_labs(client: "DockerClient", lab_id: str | None = None) -> list[Lab]:
    """All labs on an engine, or the one with that id, oldest first."""
    label = f"{LABEL}.lab" if lab_id is None else f"{LABEL}.lab={lab_id}"
    labs: dict[str, Lab] = {}
    for item in client.api.containers(all=True, filters={"label": label}):
        lab = _lab_of(labs, item["Labels"])
        lab.created = max(lab.created, float(item["Created"]))
        lab.nodes.append(_node(item))
    for item in client.api.networks(filters={"label": label}):
        _lab_of(labs, item["Labels"]).networks.append(item["Id"])
    for lab in labs.values():
        lab.nodes.sort(key=lambda node: node.rank)
    return sorted(labs.values(), key=lambda lab: (lab.created, lab.id))


def _lab_of(labs: dict[str, Lab], labels: dict[str, str]) -> Lab:
    lab_id = labels[f"{LABEL}.lab"]
    if lab_id not in labs:
        labs[lab_id] = Lab(
            id=lab_id,
            topology=labels.get(f"{LABEL}.topology", "?"),
            workdir=Path(labels.get(f"{LABEL}.workdir", "/")),
            host=labels.get(f"{LABEL}.host", ""),
            expected=int(labels.get(f"{LABEL}.nodes", 0)),
            run=labels.get(f"{LABEL}.run"),
        )
    return labs[lab_id]


def _node(item: dict[str, Any]) -> LabNode:
    labels = item["Labels"]
    return LabNode(
        name=labels.get(f"{LABEL}.node", "?"),
        rank=int(labels.get(f"{LABEL}.node-rank", 0)),
        state=item["State"],
        container_id=item["Id"],
        config=labels.get(f"{LABEL}.config", ""),
    )


def remove_lab(client: "DockerClient", lab: Lab) -> None:
    """Remove the containers, then the networks. What has gone meanwhile is as good as removed.

    Raises:
        LabError: the engine refuses, since somebody else uses the network, say.
    """
    from docker.errors import NotFound

    def remove(node: LabNode) -> None:
        with contextlib.suppress(NotFound), _already_going():
            client.api.remove_container(node.container_id, force=True, v=True)

    with api_errors(f"{lab.id} cannot be removed"):
        at_once([partial(remove, node) for node in lab.nodes])
        for network in lab.networks:
            with contextlib.suppress(NotFound):
                client.api.remove_network(network)


@contextlib.contextmanager
def _already_going() -> Iterator[None]:
    """Quiet when somebody else is removing the same container."""
    from docker.errors import APIError

    try:
        yield
    except APIError as error:
        if "already in progress" not in str(error.explanation):
            raise


@contextlib.contextmanager
def workdir_lock(workdir: Path, *, wait: bool) -> Iterator[bool]:
    """Keep others from making or removing nodes for the same folder meanwhile.

    The lock is on the folder itself, so that no lock file stays behind, and it goes with the
    process. Yields whether it was got; where the folder has gone there is nobody to lock out.
    """
    try:
        folder = os.open(workdir, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        yield True
        return
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        yield False
    else:
        yield True
    finally:
        os.close(folder)
