"""The variables that every rank finds: torchrun's, name by name, and lab's own."""

import os
from collections.abc import Mapping

from lab.node.protocol import NodeJob


def environment_of(
    job: NodeJob, local_rank: int, master_addr: str, master_port: int
) -> dict[str, str]:
    """All that a rank finds which the agent of its node starts."""
    return launch_environment(os.environ, job.env, job.slots) | rank_environment(
        rank=job.first_rank + local_rank,
        local_rank=local_rank,
        world_size=job.world_size,
        local_world_size=job.slots,
        node_rank=job.node_rank,
        nnodes=job.nnodes,
        node=job.node,
        topology=job.topology,
        master_addr=master_addr,
        master_port=master_port,
        run_id=job.run_id,
        run_dir=job.run_dir,
        restart_count=job.restart_count,
        max_restarts=job.max_restarts,
    )


def rank_environment(
    *,
    rank: int,
    local_rank: int,
    world_size: int,
    local_world_size: int,
    node_rank: int,
    nnodes: int,
    node: str,
    topology: str,
    master_addr: str,
    master_port: int,
    run_id: str,
    run_dir: str,
    restart_count: int = 0,
    max_restarts: int = 0,
) -> dict[str, str]:
    """The environment contract of one rank.

    The names up to TORCHELASTIC_ERROR_FILE are what torchrun 2.13 sets
    (torch/distributed/elastic/agent/server/local_elastic_agent.py); NODE_RANK, NNODES and LAB_*
    are what scripts written for other launchers look for, and ours.

    Returns:
        name -> value. What is only a default is not among them: see `launch_environment`.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(local_world_size),
        "GROUP_RANK": str(node_rank),
        "GROUP_WORLD_SIZE": str(nnodes),
        "ROLE_RANK": str(rank),
        "ROLE_NAME": "default",
        "ROLE_WORLD_SIZE": str(world_size),
        "MASTER_ADDR": master_addr,
        "MASTER_PORT": str(master_port),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": str(restart_count),
        "TORCHELASTIC_MAX_RESTARTS": str(max_restarts),
        # The agent of torchrun would host the store for its ranks; here rank 0 hosts it.
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": f"{run_dir}/{node}/rank{rank}.error.json",
        "NODE_RANK": str(node_rank),
        "NNODES": str(nnodes),
        **lab_environment(node=node, topology=topology, run_id=run_id, run_dir=run_dir),
    }


def lab_environment(*, node: str, topology: str, run_id: str, run_dir: str) -> dict[str, str]:
    """The variables of lab's own that all ranks of a node share."""
    return {
        "LAB_RUN_ID": run_id,
        "LAB_RUN_DIR": run_dir,
        "LAB_NODE": node,
        "LAB_TOPOLOGY": topology,
    }


def launch_environment(
    inherited: Mapping[str, str], job: Mapping[str, str], slots: int
) -> dict[str, str]:
    """What a rank has beside the contract: the node's variables, and the job's on top.

    Where neither says anything, torchrun's defaults; OMP_NUM_THREADS only for ranks that share a
    node.
    """
    defaults = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "TORCHELASTIC_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
    }
    if slots > 1:
        defaults["OMP_NUM_THREADS"] = "1"
    return {**defaults, **inherited, **job}
