"""A topology as a Compose file that works by itself, with no Python on the host.

The same containers as `lab up` makes (`lab.transport.containers`); only the command differs: the
nodes run `lab.node.alone`, since nobody drives them. The file has no absolute host path and no uid.
"""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from lab.topology import Topology
from lab.transport.containers import PYTHON, Container, container, lab_network

IMAGE = "multinode-lab/node:compose"
WORKDIR = "/workspace"
COMMAND = (PYTHON, "-P", "-m", "lab.node.alone")

HEADER = """\
# {name}: {nodes} as containers, for Docker Compose alone; no Python is needed on the host.
#
#     docker compose up --exit-code-from {first}        # build, run the job, end with its exit code
#     LAB_JOB="train.py --epochs 3" docker compose up --exit-code-from {first}
#     docker compose down
#
# This folder is mounted at {workdir}; what the ranks write there belongs to its owner.
# Made by `lab render {name} --as compose`; with lab installed, `lab up` and `lab run` do more.
"""


def render_compose(topology: Topology) -> str:
    """The Compose file of a topology.

    Raises:
        UsageError: its addresses cannot be had in containers.
    """
    nodes = [container(topology, n, IMAGE, WORKDIR, COMMAND) for n in topology.nodes]
    slots = " ".join(f"{node.name}={node.slots}" for node in topology.nodes)
    job = shlex.join(topology.job.argv) if topology.job is not None else ""
    envs = [{**node.env, "LAB_NODES": slots, "LAB_ALONE": "1"} for node in nodes]
    shared = {k: v for k, v in envs[0].items() if all(env.get(k) == v for env in envs)}
    count = f"{len(nodes)} nodes" if len(nodes) > 1 else "one node"
    lines = [
        HEADER.format(name=topology.name, nodes=count, first=nodes[0].node, workdir=WORKDIR),
        "x-environment: &environment",
        *_mapping(shared, 2),
        f"  LAB_DEFAULT_JOB: {_scalar(job)}",
        "  LAB_JOB: ${LAB_JOB:-}",
        "",
        "x-node: &node",
        *_node(nodes[0]),
        "",
        "services:",
    ]
    for node, env in zip(nodes, envs, strict=True):
        own = {key: value for key, value in env.items() if key not in shared}
        lines += [*_service(node, own, nodes[0]), ""]
    lines += _network(topology)
    return "\n".join(lines) + "\n"


def _node(node: Container) -> list[str]:
    """What all nodes have in common."""
    return [
        f"  image: {node.image}",
        f"  command: {_flow(node.command)}",
        "  init: true",
        f"  working_dir: {node.workdir}",
        f"  volumes: [{_scalar('.:' + node.workdir)}]",
        "  cap_drop: [ALL]",
        f"  cap_add: [{', '.join(node.cap_add)}]",
        "  security_opt: [no-new-privileges, label:disable]",
        "  stop_grace_period: 15s",
        *_limits(node),
        *([f"  shm_size: {node.shm}"] if node.shm is not None else []),
        *_gpus(node),
    ]


def _limits(node: Container) -> list[str]:
    lines = [f"  cpus: {node.cpus:g}"] if node.cpus is not None else []
    if node.memory is not None:
        lines += [f"  mem_limit: {node.memory}", f"  memswap_limit: {node.memory}"]
    return lines


def _gpus(node: Container) -> list[str]:
    if node.gpus is None:
        return []
    device = f"{{driver: nvidia, count: {node.gpus}, capabilities: [gpu]}}"
    return [f"  deploy: {{resources: {{reservations: {{devices: [{device}]}}}}}}"]


def _service(node: Container, env: Mapping[str, str], first: Container) -> list[str]:
    """One node; the first one also says how the image is built, for all of them."""
    lines = [f"  {node.node}:", "    <<: *node", f"    hostname: {node.node}"]
    if node is first:
        lines += [
            "    build: {context: ., dockerfile: docker/node.Dockerfile}",
            "    pull_policy: build  # seconds where nothing has changed; never old code",
        ]
    else:
        lines.append("    pull_policy: never  # it is the image that the first node builds")
    lines += ["    environment:", "      <<: *environment", *_mapping(env, 6)]
    options: dict[str, Any] = {}
    if node.aliases:
        options["aliases"] = list(node.aliases)
    if node.ip is not None:
        options["ipv4_address"] = node.ip
    lines.append(
        f"    networks: {{lab: {json.dumps(options)}}}" if options else "    networks: [lab]"
    )
    if _limits(node) != _limits(first):
        lines += [f"  {line}" for line in _limits(node)]
    return lines


def _network(topology: Topology) -> list[str]:
    network = lab_network(topology)
    lines = ["networks:", "  lab:", "    driver: bridge"]
    if network.internal:
        lines.append("    internal: true")
    if network.subnet is not None:
        pool = f"{{subnet: {network.subnet}, gateway: {network.gateway}}}"
        lines.append(f"    ipam: {{config: [{pool}]}}")
    return lines


def _mapping(values: Mapping[str, str], indent: int) -> list[str]:
    return [f"{' ' * indent}{key}: {_scalar(value)}" for key, value in sorted(values.items())]


def _scalar(text: str) -> str:
    """A string for YAML, safe from Compose's own variables."""
    return json.dumps(text, ensure_ascii=False).replace("$", "$$")


def _flow(words: Sequence[str]) -> str:
    return "[" + ", ".join(_scalar(word) for word in words) + "]"
