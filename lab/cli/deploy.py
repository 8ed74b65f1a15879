"""`lab deploy`: this folder and its packages onto the hosts of a topology."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lab.cli.console import colours_wanted
from lab.cli.options import JsonOption, NodesOption, TopologyOption
from lab.cli.output import one_line, say
from lab.errors import UsageError

if TYPE_CHECKING:
    from lab.topology import Topology


def deploy(
    topology: TopologyOption = None,
    nodes: NodesOption = None,
    requirements: Annotated[
        Path | None,
        typer.Option(
            "--requirements",
            metavar="FILE",
            help="Packages on top of torch and lab's own, as pip takes them.",
            show_default=False,
        ),
    ] = None,
    rollback: Annotated[
        bool,
        typer.Option("--rollback", help="Use the version again that was there before this one."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Put this folder and the packages it needs on all hosts of a topology, or on none.

    What git knows of is sent: tracked files as they are now, and untracked ones that are not
    ignored; elsewhere all but obvious junk. Only what a host lacks travels, every file is verified
    by its hash, and all hosts switch to the new version when all have it. lab run does this first.
    `lab render --as ssh` shows what would be done.
    """
    from lab.deploy.deployment import deploy as deploy_plan
    from lab.deploy.deployment import roll_back
    from lab.deploy.plan import Plan
    from lab.deploy.requirements import Requirements
    from lab.topology import load_topology
    from lab.transport.ssh import SshTransport

    loaded = load_topology(topology, nodes=nodes)
    if loaded.on != "ssh":
        raise UsageError(f"{loaded.name} is on {loaded.on}, where nodes see this folder as it is")
    if rollback and requirements is not None:
        raise UsageError(
            "--rollback brings the packages of that version back; leave --requirements out"
        )
    packages = None if requirements is None else Requirements.read(requirements)
    transport = SshTransport(loaded, Path.cwd())
    plan = Plan.of(loaded, Path.cwd(), packages)
    with _shown(loaded) as watcher:
        act = roll_back if rollback else deploy_plan
        outcome = act(plan, transport.start_bare, watcher)
    if as_json:
        hosts = {name: release.folder for name, release in outcome.releases.items()}
        print(
            json.dumps(
                {
                    "version": outcome.content,
                    "files": len(plan.tree.entries),
                    "hosts": hosts,
                    "changed": sorted(outcome.changed),
                    "sent": outcome.sent,
                    "seconds": round(outcome.seconds, 3),
                }
            )
        )
        return
    count = loaded.nnodes
    everywhere = f"{count} host{'s' * (count > 1)}"
    if rollback:
        print(f"lab: {everywhere} use version {outcome.content[:12]} again, until the next deploy")
        return
    from lab.deploy.tree import in_words

    what = f"{len(plan.tree.entries)} files, {in_words(plan.tree.size)}"
    done = f"{in_words(outcome.sent)} sent to {len(outcome.changed)}"
    if not outcome.changed:
        done = "nothing to send"
    print(
        f"lab: version {outcome.content[:12]} ({what}) is on {everywhere}; {done}, "
        f"{outcome.seconds:.1f} s"
    )


class Lines:
    """Shows each new step of a host as a line."""

    def __init__(self) -> None:
        self._last: dict[str, str] = {}
        self._lock = threading.Lock()

    def step(self, node: str, words: str, done: int, total: int) -> None:
        """See `lab.deploy.deployment.Watcher`."""
        with self._lock:
            if self._last.get(node) != words:
                self._last[node] = words
                say(f"lab: {node}: {words}")

    def warn(self, text: str) -> None:
        """See `lab.deploy.deployment.Watcher`."""
        say(f"lab: warning: {text}")


class Table:
    """A table that follows the hosts on a terminal: step, progress, seconds."""

    def __init__(self, topology: "Topology", show: Any) -> None:
        """`show`: shows a renderable in place of the one before."""
        self._show = show
        self._began = time.monotonic()
        self._rows = {node.name: ("", "", 0.0) for node in topology.nodes}
        self._lock = threading.Lock()

    def step(self, node: str, words: str, done: int, total: int) -> None:
        """See `lab.deploy.deployment.Watcher`."""
        progress = f"{100 * done // total} %" if total else ""
        with self._lock:
            self._rows[node] = (one_line(words), progress, time.monotonic() - self._began)
            self._show(self._table())

    def warn(self, text: str) -> None:
        """See `lab.deploy.deployment.Watcher`."""
        say(f"lab: warning: {text}")

    def _table(self) -> Any:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for column in ("HOST", "STEP", "PROGRESS", "SECONDS"):
            table.add_column(column, justify="right" if column == "SECONDS" else "left")
        for name, (words, progress, seconds) in self._rows.items():
            table.add_row(name, Text(words[:60]), progress, f"{seconds:.1f}")
        return table


@contextmanager
def _shown(topology: "Topology") -> Iterator[Lines | Table]:
    """A table on a terminal, lines elsewhere."""
    if not colours_wanted(sys.stderr):
        yield Lines()
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True, markup=False), refresh_per_second=8) as live:
        yield Table(topology, live.update)
