"""Names in braces that stand in a job's arguments for what only the node knows."""

import re
from collections.abc import Mapping, Sequence

VARIABLES = {
    "node_rank": "GROUP_RANK",
    "nnodes": "GROUP_WORLD_SIZE",
    "nproc": "LOCAL_WORLD_SIZE",
    "world_size": "WORLD_SIZE",
    "master_addr": "MASTER_ADDR",
    "master_port": "MASTER_PORT",
    "run_dir": "LAB_RUN_DIR",
}
"""All that is replaced, and by which variable; every other brace (JSON, say) stays as it is."""
_PATTERN = re.compile(r"\{(" + "|".join(VARIABLES) + r")\}")


def fill(command: Sequence[str], env: Mapping[str, str]) -> tuple[str, ...]:
    """The command with the placeholders in its arguments replaced, once and from left to right.

    `env` is that of the rank. The first word (the script, or `-m`) is no argument. What a value
    holds is not looked at again.
    """
    first, *arguments = command
    filled = (_PATTERN.sub(lambda found: env[VARIABLES[found[1]]], text) for text in arguments)
    return (first, *filled)
