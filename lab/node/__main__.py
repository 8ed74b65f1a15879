"""`python -P -m lab.node`: the agent as a program, on stdin and stdout.

With `--warm` it only leaves a warm process for jobs like the one on stdin.
"""

import os
import sys

from lab.node.agent import Agent
from lab.node.environment import launch_environment
from lab.node.pipes import CHUNK
from lab.node.protocol import NodeJob
from lab.node.warm import Kind, hand_over, leave_warm

WARM_IDLE = 3600.0
"""Seconds that a warm process stays on a machine that is not this lab's own to keep."""


def main() -> None:
    """Read the job from the first line of stdin and serve it, in a warm process if there is one."""
    received = b""
    while b"\n" not in received:
        data = os.read(0, CHUNK)
        if not data:
            return
        received += data
    line, rest = received.split(b"\n", 1)
    job = NodeJob.from_json(line.decode())
    env = launch_environment(os.environ, job.env, job.slots)
    kind = Kind.of(env) if job.warm else None
    if "--warm" not in sys.argv:
        if kind is not None and hand_over(kind, received):
            return
        # Whatever a library prints must not get between the protocol's lines.
        reports = os.dup(1)
        os.dup2(2, 1)
        Agent(job, commands=0, reports=reports, received=rest).run()
    if kind is not None:
        leave_warm(kind, env, None if job.silence is None else WARM_IDLE)


if __name__ == "__main__":
    main()
