"""Names in braces that stand in a job's arguments for what only the node knows."""

import re
from collections.abc import Mapping, Sequence

NAMES = (
    *("node_rank", "nnodes", "nproc", "world_size"),
    *("master_addr", "master_port", "run_dir"),
)
"""All that is replaced; every other brace (JSON, say) stays as it is."""
_PATTERN = re.compile(r"\{(" + "|".join(NAMES) + r")\}")


def fill(command: Sequence[str], values: Mapping[str, object]) -> tuple[str, ...]:
    """The command with the placeholders in its arguments replaced, once and from left to right.

    The first word (the script, or `-m`) is no argument. What a value holds is not looked at again.
    """
    first, *arguments = command
    filled = (_PATTERN.sub(lambda found: str(values[found[1]]), text) for text in arguments)
    return (first, *filled)
