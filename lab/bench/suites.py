"""What the parts of `lab bench` that run on ranks measure: sections, each a table of its own.

The worker modules run on the ranks and have a function for each section; nothing here needs torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

RESULT = "bench.json"
"""What rank 0 leaves in the run directory. A suite's worker: torch, backend, rows and notes."""


@dataclass(frozen=True)
class Suite:
    """One benchmark of `lab bench`."""

    name: str
    module: str
    """What each rank runs."""
    sections: Mapping[str, str]
    """Name of a section, and what it measures."""


DDP = Suite(
    "ddp",
    "lab.bench.workers.ddp",
    {
        "step": "training step: ours and torch's, by default and at their best",
        "buckets": "training step by bucket size, in MiB; 0: each parameter by itself",
        "overlap": "what overlap gains where computation and communication take equally long",
        "overlap_idle": "the same with computation that leaves the cores alone",
        "options": "price of find_unused_parameters, saving of static_graph",
        "no_sync": "steps of 4 microbatches, averaging only in the last or in each",
        "share": "share of the gradients' synchronisation in a step, by batch size",
        "mean": "AVG or SUM and a division, for all gradients in one message",
    },
)
FSDP = Suite(
    "fsdp",
    "lab.bench.workers.fsdp",
    {
        "step": "training step and bytes on the wire: ours and torch's fully_shard (FSDP2)",
    },
)
GPT = Suite(
    "gpt",
    "lab.bench.workers.gpt",
    {
        "step": "training a small GPT: ours, torch's DDP and torch's FSDP2, on 1, 2, 4... ranks",
    },
)
CHECKPOINT = Suite(
    "checkpoint",
    "lab.bench.workers.checkpoint",
    {
        "stall": "how long a training stands still for a checkpoint: ours and torch's",
        "steps": "training steps and a checkpoint together, until both are done",
    },
)
COLLECTIVES = Suite(
    "collectives",
    "lab.bench.workers.collectives",
    {
        "all_reduce": "all-reduce by size",
        "all_gather": "all-gather by size of the whole",
        "reduce_scatter": "reduce-scatter by size of the whole",
        "broadcast": "broadcast by size",
        "hierarchical": "all-reduce inside nodes and between them, by size",
        "barrier": "a barrier, and the smallest all-reduce",
    },
)
