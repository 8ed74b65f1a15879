"""Where this process stands among the ranks: from the environment to a process group and back.

A launcher (lab, torchrun, a Slurm script) says it in RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and
MASTER_PORT, and for plain srun `slurm_tasks.py` does: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables.
"""

import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from lab.errors import LabError, UsageError
from lab.training.slurm_tasks import name_as_launchers_do

BACKENDS = ("auto", "gloo", "nccl")
INIT_METHOD = "LAB_INIT_METHOD"
"""A variable: where the ranks meet instead of at MASTER_ADDR, such as file:///shared/new-file."""


@dataclass(frozen=True)
class World:
    """This process's place, and where its tensors live."""

    rank: int
    size: int
    device: torch.device
    backend: str
    """Of the process group; `none` where there is none."""

    @property
    def is_main(self) -> bool:
        """Whether this is the one rank that prints and saves."""
        return self.rank == 0

    def gather(self, *values: float) -> list[list[float]]:
        """Everybody's values, by rank, in float64. A collective: every rank calls it."""
        mine = torch.tensor(values, dtype=torch.float64, device=self.device)
        everybodys = [torch.empty_like(mine) for _ in range(self.size)]
        if dist.is_initialized():
            dist.all_gather(everybodys, mine)
        else:
            everybodys = [mine]
        return [row.tolist() for row in everybodys]

    def sum(self, *values: float) -> list[float]:
        """Each value summed over all ranks, in float64. A collective: every rank calls it."""
        totals = torch.tensor(values, dtype=torch.float64, device=self.device)
        return [float(total) for total in self.add_up(totals)]

    def add_up(self, value: Tensor) -> Tensor:
        """The sum of all ranks' tensors; a GPU is not waited for. A collective."""
        total = value.clone()
        if dist.is_initialized():
            dist.all_reduce(total)
        return total

    def on_main(self, make: Callable[[], object]) -> None:
        """Do something on rank 0 alone. A collective.

        Raises:
            LabError: on every rank, what it raised there: none may go on and wait for rank 0.
        """
        error: list[LabError | None] = [None]
        if self.is_main:
            try:
                make()
            except LabError as raised:
                error[0] = raised
        if dist.is_initialized():
            dist.broadcast_object_list(error)
        if error[0] is not None:
            raise error[0]


@contextmanager
def join_world(
    backend: str = "auto", *, group_of_one: bool = False, timeout: timedelta | None = None
) -> Iterator[World]:
    """Join the process group the environment describes, and leave it at the end, come what may.

    Without RANK and WORLD_SIZE this is a plain single process: no group, unless `group_of_one`
    asks for one (for code that calls collectives). A group that the caller has made already is
    used and left to the caller.

    Args:
        backend: gloo, nccl, or auto: nccl where the node has a GPU for each of its ranks, else
            gloo. Must come out the same on every rank.
        group_of_one: make a group even for a single process.
        timeout: of each collective; default PyTorch's, 30 minutes for gloo.

    Raises:
        UsageError: the environment is incomplete, or the backend is nccl without enough GPUs.
    """
    if dist.is_initialized():
        backend = dist.get_backend()
        device = torch.device("cuda" if backend == "nccl" else "cpu")  # cuda: the current one
        yield World(dist.get_rank(), dist.get_world_size(), device, backend)
        return

    name_as_launchers_do()
    rank, size, local_rank, local_size = _place()
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if backend == "auto":
        backend = "nccl" if dist.is_nccl_available() and gpus >= local_size else "gloo"
    if backend == "nccl" and gpus < local_size:
        raise UsageError(
            f"backend nccl needs a GPU for each rank: {local_size} on this node, {gpus} found; "
            "use --backend gloo, or fewer ranks per node"
        )
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)

    # Optimizers import this. Imported only after a group was made, it keeps the group alive beyond
    # destroy_process_group (torch 2.13), and a gloo thread that lets go of its last tensor while
    # Python ends aborts the process, now and then.
    importlib.import_module("torch._dynamo")
    if "RANK" in os.environ:
        dist.init_process_group(
            backend, os.environ.get(INIT_METHOD), timeout=timeout, world_size=size, rank=rank
        )
        if backend == "gloo":
            # Else a rank that refuses its options at once would be gone while another connects,
            # which would then say that it lost a peer.
            dist.barrier()
    elif group_of_one:
        store = dist.HashStore()  # type: ignore[attr-defined]  # public, absent from __all__
        dist.init_process_group(backend, store=store, rank=0, world_size=1, timeout=timeout)
    try:
        yield World(rank, size, device, backend if dist.is_initialized() else "none")
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _place() -> tuple[int, int, int, int]:
    """Rank, world size, local rank, local world size from the environment; one process without."""
    address = () if os.environ.get(INIT_METHOD) else ("MASTER_ADDR", "MASTER_PORT")
    needed = ("RANK", "WORLD_SIZE", *address)
    if not {"RANK", "WORLD_SIZE"} & set(os.environ):
        return 0, 1, 0, 1
    missing = [name for name in needed if not os.environ.get(name)]
    if missing:
        raise UsageError(
            f"the environment is incomplete, {', '.join(missing)} is missing: start this with "
            "lab run or torchrun, or unset RANK and WORLD_SIZE for a single process"
        )
    try:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local_rank = int(os.environ.get("LOCAL_RANK", 0))
        local_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    except ValueError as error:
        raise UsageError(f"RANK, WORLD_SIZE and the local ones must be numbers: {error}") from None
    if not 0 <= rank < size:
        raise UsageError(f"RANK={rank} does not fit WORLD_SIZE={size}: ranks count from 0")
    return rank, size, local_rank, local_size
