"""nccl and its environment: which backend runs here, by what rule, and what steers it.

Exercise
    Say which backend these ranks use and why. Try the other one. Find out who is where, through
    which variables a backend learns it, and what a wrong one does.

Theory
    nccl moves tensors between GPUs, gloo between CPUs. nccl wants a GPU for each rank: two ranks on
    one are refused. So the rule is: nccl where every rank has a GPU of its own, else gloo. Code
    stays the same but for three lines: the backend's name, `torch.cuda.set_device(LOCAL_RANK)`
    before the first collective, and the model's device.

        RANK, WORLD_SIZE               which of how many
        LOCAL_RANK, LOCAL_WORLD_SIZE   the same on this node; LOCAL_RANK is the GPU's number
        GROUP_RANK                     of the node
        MASTER_ADDR, MASTER_PORT       where rank 0 listens. An address that all nodes reach: never
                                       127.0.0.1, nor a name that /etc/hosts has as 127.0.1.1
        NCCL_SOCKET_IFNAME             interfaces: eth (begins so), =eth0 (exactly), ^docker (not)
        GLOO_SOCKET_IFNAME             exact names only
        NCCL_DEBUG=INFO                which way nccl takes: read it first when it is slow
        NCCL_P2P_DISABLE, NCCL_IB_DISABLE, NCCL_SHM_DISABLE=1   rule a way out, to find a fault
        TORCH_NCCL_BLOCKING_WAIT=1     wait() blocks, as gloo's does
        CUDA_VISIBLE_DEVICES           which GPUs; they are numbered anew from 0

    A global rank is the number of ranks on the nodes before, plus the local rank. The variables of
    a backend must be alike on all nodes, else some look for others on a network that they are not
    on: no error, but a hang.

Read
    docs/backends.md has it in full; lab/training/world.py, `join_world`, is the rule in code.
"""

import ipaddress
import os
import socket
import sys
import warnings

import torch
import torch.distributed as dist

from lab.lessons.notebook import TIMEOUT, Notebook, main
from lab.training.world import World

STEERING = ("NCCL_", "TORCH_NCCL_", "GLOO_")
"""Variables that begin so must be alike everywhere."""
INTERFACE = "GLOO_SOCKET_IFNAME"
NO_INTERFACE = "nosuch0"


def exercise(notebook: Notebook) -> None:
    """Who is where, the rule, the other backend, a wrong variable."""
    show_places(notebook)
    world = notebook.world
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    enough = all(notebook.gather(dist.is_nccl_available() and gpus >= local("WORLD_SIZE", 1)))
    chosen = sorted(set(notebook.gather(world.backend)))
    notebook.show("backends in use", " and ".join(chosen), "nccl" if enough else "gloo")
    notebook.expect("how many different ones", len(chosen), 1)
    notebook.expect("sum of rank + 1 by it", world.sum(world.rank + 1)[0], triangle(world.size))

    refusal = try_nccl(world, gpus)
    what = "nccl here" if enough else "nccl here, without a GPU for each rank"
    words = "works" if refusal is None else f"refused: {refusal}"
    notebook.judge(what, (refusal is None) == enough, words, "works" if enough else "refused")

    refusal = try_interface(NO_INTERFACE)
    words = "works" if refusal is None else f"refused: {refusal}"
    named = refusal is not None and NO_INTERFACE in refusal
    notebook.judge(f"gloo with {INTERFACE}={NO_INTERFACE}", named, words, "refused, by its name")
    notebook.judge("gloo with the right one again", try_interface(None) is None, "works", "works")


def show_places(notebook: Notebook) -> None:
    """Where each rank is, by its environment."""
    world = notebook.world
    master = os.environ.get("MASTER_ADDR", "localhost"), os.environ.get("MASTER_PORT", "")
    group, rank, size = local("GROUP_RANK", 0, prefix=""), local("RANK", 0), local("WORLD_SIZE", 1)
    places = notebook.gather((socket.gethostname(), group, rank, size))
    columns = ("rank", "host", "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    notebook.table(columns, [(number, *place) for number, place in enumerate(places)])
    sizes = {group: size for _, group, _, size in places}
    before = sum(size for other, size in sizes.items() if other < group)
    notebook.expect("ranks on the nodes before, and the local rank", before + rank, world.rank)
    notebook.expect("different MASTER_ADDR and MASTER_PORT", len(set(notebook.gather(master))), 1)
    hosts = {host for host, *_ in places}
    loopback = is_loopback(master[0])
    notebook.judge(
        "MASTER_ADDR is one that all ranks reach",
        len(hosts) == 1 or not loopback,
        f"{master[0]}{' (loopback)' * loopback}, hosts: {len(hosts)}",
        "loopback on a single host only",
    )
    mine = sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith(STEERING))
    notebook.say(f"set here: {' '.join(mine) or 'none of ' + ', '.join(STEERING)}")
    different = len({tuple(variables) for variables in notebook.gather(mine)})
    notebook.expect("different sets of these variables", different, 1)


def local(name: str, default: int, prefix: str = "LOCAL_") -> int:
    """A number from the environment."""
    return int(os.environ.get(f"{prefix}{name}", default))


def triangle(count: int) -> float:
    """1 + 2 + ... + count."""
    return count * (count + 1) / 2


def is_loopback(address: str) -> bool:
    """Whether it may lead a node to itself instead of to rank 0."""
    found = {str(info[4][0]) for info in socket.getaddrinfo(address, None)}
    return any(ipaddress.ip_address(text.partition("%")[0]).is_loopback for text in found)


def try_nccl(world: World, gpus: int) -> str | None:
    """A group and an all-reduce by nccl; what it says where it refuses."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a build without nccl, which then says so anyway
            group = dist.new_group(backend="nccl", timeout=TIMEOUT)
        device = torch.device("cuda", local("RANK", 0) % gpus)
        total = torch.tensor(float(world.rank + 1), device=device)
        dist.all_reduce(total, group=group)
        assert total.item() == triangle(world.size)
    except (RuntimeError, ValueError) as error:
        return first_line(error)
    dist.destroy_process_group(group)
    return None


def try_interface(name: str | None) -> str | None:
    """A gloo group on that interface; what it says where it refuses. None: as it was."""
    before = os.environ.get(INTERFACE)
    if name is not None:
        os.environ[INTERFACE] = name
    try:
        group = dist.new_group(backend="gloo", timeout=TIMEOUT)
        dist.barrier(group)
    except RuntimeError as error:
        return first_line(error)
    finally:
        os.environ.pop(INTERFACE, None)
        if before is not None:
            os.environ[INTERFACE] = before
    dist.destroy_process_group(group)
    return None


def first_line(error: Exception) -> str:
    """Of its message, without where in PyTorch's source it was raised."""
    return str(error).partition("\n")[0].rpartition("] ")[2]


if __name__ == "__main__":
    sys.exit(main(exercise))
