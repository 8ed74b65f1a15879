"""Nodes on which nothing is wrong, as data; tests break one thing."""

from typing import Any

from lab.doctor.examined import Examined, Patient

GIB = 1 << 30


def look(rank: int, count: int) -> dict[str, Any]:
    """What a healthy node tells of itself."""
    names = [f"node{other}" for other in range(count)]
    own = f"10.0.0.{rank + 1}"
    return {
        "hostname": names[rank],
        "python": "3.11.2",
        "cores": 4.0,
        "cpus": 8,
        "memory": 8 * GIB,
        "memory_free": 6 * GIB,
        "gpus": [],
        "gpu_links": {},
        "disk_free": 50 * GIB,
        "writable": True,
        "shm": {"total": GIB, "free": GIB},
        "ulimits": {
            "open files": [65536, 65536],
            "processes": [None, None],
            "locked": [65536, None],
        },
        "cgroup": {"memory": 8 * GIB, "pids": None},
        "infiniband": False,
        "netem": True,
        "ptrace": True,
        "machine": f"boot {rank}",
        "network": f"boot {rank} net:[1]",
        "interfaces": {
            "lo": {"addresses": ["127.0.0.1", "::1"], "mtu": 65536, "up": True},
            "eth0": {"addresses": [own], "mtu": 1500, "up": True},
            "ib0": {"addresses": [], "mtu": 2044, "up": False},
        },
        "names": {name: {"addresses": [f"10.0.0.{n + 1}"]} for n, name in enumerate(names)},
        "routes": {name: "lo" if n == rank else "eth0" for n, name in enumerate(names)},
        "own_name": {"addresses": [own]},
        "advertises": own,
        "address": names[rank],
        "variables": {"OMP_NUM_THREADS": "1"},
        "code": {"files": {"train.py": "aa"}, "hash": "bb"},
        "slurm": None,
        "ports": {"gloo": 40000 + rank, **({"master": 29500} if rank == 0 else {})},
        "port_problem": None,
    }


def healthy(count: int = 4, on: str = "docker", backend: str = "gloo", slots: int = 1) -> Examined:
    """An examination that is over and has found nothing."""
    names = [f"node{rank}" for rank in range(count)]
    exam = Examined(on, backend, tuple(Patient(name, name, slots) for name in names))
    exam.looks = {name: look(rank, count) for rank, name in enumerate(names)}
    exam.torch = {
        name: {
            "version": "2.13.0",
            "cuda": None,
            "nccl": None,
            "gloo": True,
            "gpus": 0,
            "threads": 1,
        }
        for name in names
    }
    exam.connected = {
        one: {
            other: {
                way: {"who": other, "clock_ahead": 0.001, "clock_unsure": 0.0005}
                for way in ("gloo", "advertised", *(["master"] if other == "node0" else []))
            }
            for other in names
            if other != one
        }
        for one in names
    }
    exam.measured = {
        (one, other): {"latency": 1e-4, "bandwidth": 1.25e9}
        for one in names
        for other in names
        if one != other
    }
    exam.roll_call = {
        name: {"present": names, "sum_is_right": True, "seconds": 0.1} for name in names
    }
    exam.is_called = True
    return exam


def give_gpus(exam: Examined, count: int = 8) -> None:
    """Put GPUs into every node, and a torch that can use them."""
    gpu = {"name": "NVIDIA H200", "memory": 140 * GIB, "memory_used": 0, "driver": "550.1"}
    for look_ in exam.looks.values():
        look_.update(gpus=[dict(gpu) for _ in range(count)])  # type: ignore[attr-defined]  # a test
    for torch in exam.torch.values():
        torch.update(gpus=count, nccl="2.21.5", cuda="12.4")  # type: ignore[attr-defined]
