"""Until a first all-reduce has ended: `lab run` on Slurm beside sbatch by hand."""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, get_args

from lab import interrupts
from lab.batch.code import CODE
from lab.batch.run import slurm_of
from lab.bench import startup
from lab.bench.compare import compared
from lab.bench.startup import ENDED
from lab.channel import Progress
from lab.children import child
from lab.errors import LabError, UsageError
from lab.topology import Topology, dump_topology
from lab.topology.slurm import Launcher

SCRIPT = "first_all_reduce.py"
COMMAND, SUBMISSION = "command", "submission"
"""Since when. The latter leaves out what `lab run` does before it calls sbatch."""
LOOK_EVERY = 1.0
"""Seconds between two looks whether a job is over, which its time does not depend on."""
BY_HAND = """\
#!/bin/bash
#SBATCH --nodes={nodes} --ntasks-per-node={tasks} {partition}
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 12000))
srun bash -c '{rank} {script}'
"""
RANKS = {
    "torchrun": "{python} -m torch.distributed.run --nnodes=$SLURM_NNODES --nproc-per-node={slots} "
    "--node-rank=$SLURM_NODEID --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT",
    "srun": "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID {python}",
}


def bench_slurm(topology: Topology, runs: int, progress: Progress) -> list[dict[str, Any]]:
    """Seconds of each way, alternating, `runs` times each; one of each goes before.

    The cluster has one job at a time. All of it happens in a folder below this one, which its hosts
    must see.

    Raises:
        UsageError: the topology is not of Slurm, or has nodes of different slots.
        LabError: a job failed.
    """
    if topology.on != "slurm" or len({node.slots for node in topology.nodes}) > 1:
        raise UsageError("lab bench slurm needs a topology on slurm with the same slots everywhere")
    taken: dict[str, dict[str, list[float]]] = {COMMAND: {}, SUBMISSION: {}}
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="bench-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(Path(startup.__file__).with_name(SCRIPT), folder)
        ways: dict[str, Callable[[], tuple[float, float]]] = {}
        for launcher in get_args(Launcher):
            options = topology.slurm.model_copy(update={"launcher": launcher})
            here = topology.model_copy(update={"slurm": options})
            ways[f"lab run, {launcher}"] = partial(_lab_run, here, folder)
            ways[f"sbatch by hand, {launcher}"] = partial(_by_hand, here, folder)
        for number in range(runs + 1):
            for way, measure in ways.items():
                progress(f"{way}, {'warm-up' if number == 0 else f'run {number} of {runs}'}")
                each = measure()
                if number > 0:
                    for since, seconds in zip((COMMAND, SUBMISSION), each, strict=True):
                        taken[since].setdefault(way, []).append(seconds)
    return [
        {"since": since, **row}
        for since, times_of in taken.items()
        for launcher in get_args(Launcher)
        for row in compared(
            {way: times for way, times in times_of.items() if way.endswith(launcher)},
            {"by hand": f"sbatch by hand, {launcher}"},
            "way",
        )
    ]


def _lab_run(topology: Topology, folder: Path) -> tuple[float, float]:
    """As a user would, but for what the ranks say, which is read from their files."""
    (folder / "bench.yaml").write_text(dump_topology(topology))
    began = time.time()
    argv = [sys.executable, "-P", "-m", "lab", "run", "-q", "-t", "bench.yaml", SCRIPT]
    pipe = subprocess.PIPE
    with child(argv, cwd=folder, stdout=pipe, stderr=pipe) as process:
        _, error = process.communicate()
    (run,) = (folder / "runs").glob("[!.]*")
    said = "".join(path.read_text() for path in run.glob("*/*.out"))
    submitted = (run / CODE).lstat().st_mtime  # the last that is made before
    shutil.rmtree(run)
    ended = _last(said, topology, error)
    return ended - began, ended - submitted


def _by_hand(topology: Topology, folder: Path) -> tuple[float, float]:
    """The script that the documentation of Slurm and torchrun leads to."""
    slurm, slots = topology.slurm, topology.nodes[0].slots
    output = folder / "by-hand.out"
    output.unlink(missing_ok=True)
    partition = f"--partition={slurm.partition}" if slurm.partition else ""
    (folder / "by-hand.sbatch").write_text(
        BY_HAND.format(
            nodes=topology.nnodes,
            tasks=slots if slurm.launcher == "srun" else 1,
            partition=partition,
            rank=RANKS[slurm.launcher].format(python=slurm.python, slots=slots),
            script=SCRIPT,
        )
    )
    cluster = slurm_of(topology, folder)
    began = time.time()
    job = None
    try:
        with interrupts.deferred():  # a job whose number is not known cannot be cancelled
            job = cluster.submit(folder / "by-hand.sbatch", output, {})
        while cluster.states([job])[job].active:
            time.sleep(LOOK_EVERY)
    except BaseException:
        if job is not None:
            cluster.cancel(job)
        raise
    taken = _last(output.read_text() if output.exists() else "", topology) - began
    return taken, taken


def _last(said: str, topology: Topology, error: str = "") -> float:
    ended = [float(at) for at in ENDED.findall(said)]
    if len(ended) != topology.world_size:
        raise LabError(f"a job failed:\n{said}{error}")
    return max(ended)
