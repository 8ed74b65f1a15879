"""What a node that has no controller reads from its environment instead of from a `NodeJob`."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.node.protocol import NodeJob


@dataclass(frozen=True)
class Settings:
    """What the Compose file says about this node, in its environment."""

    node: str
    topology: str
    slots: Mapping[str, int]
    """Ranks on each node, in node-rank order."""
    workdir: Path
    master_addr: str
    master_port: int
    command: tuple[str, ...]

    @classmethod
    def from_environment(cls, env: Mapping[str, str]) -> "Settings":
        """Read LAB_NODE, LAB_NODES (`node0=1 node1=1`), LAB_JOB and the rest.

        Raises:
            ValueError: no job is named, or its quotes do not match.
        """
        command = tuple(shlex.split(env.get("LAB_JOB") or env.get("LAB_DEFAULT_JOB", "")))
        if not command:
            raise ValueError('no job: say what to run, LAB_JOB="train.py" docker compose up')
        pairs = (pair.split("=") for pair in env["LAB_NODES"].split())
        return cls(
            node=env["LAB_NODE"],
            topology=env["LAB_TOPOLOGY"],
            slots={name: int(count) for name, count in pairs},
            workdir=Path(env["LAB_WORKDIR"]),
            master_addr=env["MASTER_ADDR"],
            master_port=int(env["MASTER_PORT"]),
            command=command,
        )

    def job(self, run: Path) -> NodeJob:
        """This node's part of the run."""
        names = list(self.slots)
        rank = names.index(self.node)
        return NodeJob(
            run_id=run.name,
            run_dir=str(run),
            topology=self.topology,
            node=self.node,
            node_rank=rank,
            nnodes=len(names),
            first_rank=sum(self.slots[name] for name in names[:rank]),
            slots=self.slots[self.node],
            world_size=sum(self.slots.values()),
            command=self.command,
            cwd=str(self.workdir),
            env={},
        )
