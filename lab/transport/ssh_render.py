"""What a deployment and a run do on hosts, as text: made of the same data, executed by nobody."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from lab.deploy.layout import Release
from lab.deploy.packages import OWN_PACKAGES
from lab.deploy.plan import Plan
from lab.deploy.program import BOOTSTRAP, OLDEST_PYTHON, program, start_line
from lab.deploy.tree import in_words, shown
from lab.deploy.visit import MODULES, hello, stage
from lab.transport.ssh_bundle import bundle
from lab.transport.ssh_channel import remote_command

UNKNOWN = "NNNN"
"""Stands for what only a host knows: the number of its next version."""
RUN = "RUN"
"""Stands for the run's id."""


def render_ssh(plan: Plan, places: Mapping[str, str]) -> str:
    """Everything that `lab deploy` and `lab run` would do, in order.

    Args:
        plan: what is deployed, and where to.
        places: `user@host:port` of each node.
    """
    tree, layout = plan.tree, plan.layout
    release = Release(f"{layout.folder}/releases/{UNKNOWN}-{tree.content[:12]}")
    carried = hashlib.sha256(program(MODULES, OLDEST_PYTHON)).hexdigest()[:12]
    python = plan.topology.ssh.python
    code = f"{layout.workdir}/agents/{bundle().name}"
    run_dir = f"{layout.folder}/runs/{RUN}"
    environment = {"key": "...", "own": "...", "wheels": ["..."], "requirements": _wishes(plan)}
    lines = [
        f"# Topology {plan.topology.name}: {len(places)} hosts, side by side",
        *(f"{name} = {place}" for name, place in places.items()),
        f"# ~ is the home there, {UNKNOWN} the number of the next version; the host knows them",
        "",
        f"# Files: {len(tree.entries)}, {in_words(tree.size)}, version {tree.content[:12]}",
        *(_file(entry.as_data()) for entry in tree.entries),
        *(f"# warning: {warning}" for warning in tree.warnings),
        "",
        "# Packages, as wheels from this machine, for the Python and machine that a host has",
        f"# ({OWN_PACKAGES})",
        *plan.packages.lines,
        "",
        "# lab deploy: on each host this command, BOOTSTRAP standing for the program below",
        remote_command([*start_line(python)[:-1], "BOOTSTRAP"]),
        f"# with this on its stdin: {', '.join(MODULES)} (sha256 {carried}), then",
        json.dumps({"type": "hello", **hello(layout)}),
        "# answered by what the host has; unless that is this version already",
        json.dumps({"type": "stage", **stage(tree, environment, entries=["the files above"])}),
        "# and the bytes of those files and wheels that it says it lacks; when all hosts have all",
        json.dumps({"type": "switch"}),
        f"# which makes {layout.current} a link to",
        release.folder,
        "",
        f"# lab run: all that, then lab's own code (a tar file, {in_words(len(bundle().data))}) "
        "to hosts without it",
        remote_command([release.python, "-I", "-c", "KEEP", code]),
        "# and on each host, with the run and the node's part of it on its stdin",
        remote_command(
            [release.python, "-P", "-m", "lab.node"],
            cwd=["/"],
            env={"LAB_RUN_ID": RUN, "LAB_RUN_DIR": run_dir, "LAB_NODE": "NODE"},
            folder=f"{run_dir}/NODE",
            path=code,
        ),
        f"# whose ranks start in {release.code}",
        "",
        "# BOOTSTRAP",
        BOOTSTRAP,
    ]
    return "\n".join(lines)


def _file(entry: dict[str, Any]) -> str:
    if "target" in entry:
        return f"link {shown(entry['path'])} -> {shown(entry['target'])}"
    mode = "0755" if entry["executable"] else "0644"
    return f"file {entry['hash'][:12]} {mode} {entry['size']:>9} {shown(entry['path'])}"


def _wishes(plan: Plan) -> list[str] | None:
    wanted = plan.packages.requirements
    return None if wanted is None else [str(wanted.path), *wanted.lines]
