"""Which rank of a job is on which node, where a scheduler has started them, and what is where."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.node.environment import rank_environment


def places(nodes: Mapping[str, Any]) -> dict[int, str]:
    """By rank the name of its node; `nodes`: what `lab.node.task.NODES` holds.

    torchrun gives the first names to hosts as they come, where some may be missing, but all have
    the same number of slots then (`lab.batch.script`): a rank is always on the node of one name.
    """
    slots = zip(nodes["names"], nodes["slots"], strict=True)
    return dict(enumerate(name for name, count in slots for _ in range(count)))


def events_of(run: Path, node: str, rank: int) -> Path:
    """The file in which a rank's task says what happens to it (`lab.node.task`)."""
    return run / node / f"rank{rank}.events.jsonl"


class PlaceError(Exception):
    """This process is not where the topology has it."""


def place_of(env: Mapping[str, str], nodes: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """The node that a rank is on, and all variables of its contract.

    Args:
        env: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, NODE_RANK or torchrun's GROUP_RANK,
            MASTER_ADDR and MASTER_PORT, as torchrun or the job script have set them.
        nodes: what `lab.node.task.NODES` holds.

    Raises:
        PlaceError: the topology has another rank there.
    """
    rank, local_rank = int(env["RANK"]), int(env["LOCAL_RANK"])
    node_rank = int(env.get("GROUP_RANK") or env["NODE_RANK"])
    nnodes = int(env.get("GROUP_WORLD_SIZE") or env["NNODES"])
    name = nodes["names"][node_rank]
    expected = sum(nodes["slots"][:node_rank]) + local_rank
    if rank != expected and not nodes["elastic"]:
        raise PlaceError(
            f"rank {rank} is local rank {local_rank} of {name}, where the topology has rank "
            f"{expected}: Slurm has placed the tasks in another order (--distribution=block)"
        )
    run_dir = env["LAB_RUN_DIR"]
    contract = rank_environment(
        rank=rank,
        local_rank=local_rank,
        world_size=int(env["WORLD_SIZE"]),
        local_world_size=int(env["LOCAL_WORLD_SIZE"]),
        node_rank=node_rank,
        nnodes=nnodes,
        node=name,
        topology=nodes["topology"],
        master_addr=env["MASTER_ADDR"],
        master_port=int(env["MASTER_PORT"]),
        run_id=Path(run_dir).name,
        run_dir=run_dir,
    )
    # Where torchrun has started the rank, what it says of the store and of restarts stays.
    return name, {**contract, **{name: env[name] for name in contract if name in env}}
