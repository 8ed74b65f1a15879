"""A task that plain `srun` started, as the rank that it is: Slurm names it in words of its own."""

import os
import re
import subprocess

from lab.errors import UsageError


def name_as_launchers_do() -> None:
    """Set RANK and its like from Slurm's variables, in a step of several tasks without them.

    Raises:
        UsageError: the first node's name cannot be found out.
    """
    env = os.environ
    if {"RANK", "WORLD_SIZE"} & set(env) or int(env.get("SLURM_STEP_NUM_TASKS") or 1) == 1:
        return
    env["RANK"], env["WORLD_SIZE"] = env["SLURM_PROCID"], env["SLURM_STEP_NUM_TASKS"]
    env["LOCAL_RANK"] = env["SLURM_LOCALID"]
    tasks = tasks_of_nodes(env["SLURM_STEP_TASKS_PER_NODE"])
    env["LOCAL_WORLD_SIZE"] = str(tasks[int(env["SLURM_NODEID"])])
    if "MASTER_ADDR" not in env:  # rank 0 is on the first node of the step
        env["MASTER_ADDR"] = _first_host(env["SLURM_STEP_NODELIST"])
    if "MASTER_PORT" not in env:  # one that other jobs of these nodes do not have
        env["MASTER_PORT"] = str(10000 + int(env["SLURM_JOB_ID"]) % 20000)


def tasks_of_nodes(text: str) -> list[int]:
    """How many each node has: `4(x2),3` is four on each of two nodes, and three on a third."""
    counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, nodes in counts for _ in range(int(nodes or 1))]


def _first_host(nodes: str) -> str:
    command = ["scontrol", "show", "hostnames", nodes]
    try:
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError) as error:
        raise UsageError(
            f"rank 0 is nowhere: {' '.join(command)} failed: {error}; set MASTER_ADDR"
        ) from error
