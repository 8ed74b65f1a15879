"""A topology for other launchers: each rank's environment, and a hostfile. Pure functions."""

import shlex

from lab.node.environment import launch_environment, rank_environment
from lab.topology import Node, Rank, Topology
from lab.transport.containers import DEFAULT_PORT


def render_hostfile(topology: Topology) -> str:
    """The nodes in node-rank order as mpirun, DeepSpeed and Horovod read them.

    Returns:
        One line `ADDRESS slots=N` for each node.
    """
    return "".join(f"{_reached_by(node)} slots={node.slots}\n" for node in topology.nodes)


def render_env(topology: Topology, run_id: str = "manual", run_dir: str = "runs/manual") -> str:
    """The environment of every rank as shell commands, in blocks of one rank each.

    To start rank 2 by hand, on its node and in any POSIX shell:
    `eval "$(lab render quad --as env | sed -n '/^# rank 2 /,/^$/p')"; python train.py`.

    Args:
        topology: the cluster.
        run_id: what LAB_RUN_ID and TORCHELASTIC_RUN_ID say.
        run_dir: what LAB_RUN_DIR says.

    Returns:
        For each rank a comment `# rank R on NODE`, lines `export NAME=VALUE`, an empty line.
    """
    note = ""
    if topology.master.port is None:
        note = (
            f"# Each run of lab picks a free MASTER_PORT; {DEFAULT_PORT} stands for it here.\n"
            "# Set master.port in the topology to have always the same.\n\n"
        )
    blocks = (_block(topology, rank, run_id, run_dir) for rank in topology.ranks())
    return note + "\n".join(blocks)


def _block(topology: Topology, rank: Rank, run_id: str, run_dir: str) -> str:
    lines = [f"# rank {rank.rank} on {rank.node.name}"]
    variables = _of_the_topology(topology, rank.node)
    lines += [
        f'export {name}="${{{name}:-{value}}}"'  # only a default, as under torchrun
        for name, value in launch_environment({}, {}, rank.local_world_size).items()
        if name not in variables
    ]
    variables |= rank_environment(
        rank=rank.rank,
        local_rank=rank.local_rank,
        world_size=topology.world_size,
        local_world_size=rank.local_world_size,
        node_rank=rank.node_rank,
        nnodes=topology.nnodes,
        node=rank.node.name,
        topology=topology.name,
        master_addr=topology.master.addr or _reached_by(topology.master_node),
        master_port=topology.master.port or DEFAULT_PORT,
        run_id=run_id,
        run_dir=run_dir,
    )
    lines += [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
    return "\n".join(lines) + "\n"


def _of_the_topology(topology: Topology, node: Node) -> dict[str, str]:
    interface = {"GLOO_SOCKET_IFNAME": node.interface} if node.interface else {}
    return {**interface, **topology.env}


def _reached_by(node: Node) -> str:
    return node.address or node.name
