"""Whether each node has enough for its ranks: cores, memory, limits, disk, and its kernel."""

from collections.abc import Mapping
from typing import Any

from lab.deploy.tree import in_words
from lab.doctor.check import Check, listed, warn_all
from lab.doctor.examined import Examined, groups

MIB = 1 << 20
MEMORY_OF_A_RANK = 512 * MIB
"""Bytes that a rank takes before it trains anything: Python with torch, and gloo's buffers."""
SHARED_MEMORY = 128 * MIB
"""Bytes of /dev/shm below which workers of a DataLoader, or NCCL, die of SIGBUS; an engine's
default of 64 MiB does."""
DISK = 1024 * MIB
"""Bytes below which a few checkpoints fill a disk."""
FILES = 1024
"""Open files: each rank has a socket or two for every other, and each DataLoader worker some."""
PROCESSES_OF_A_RANK = 64
"""Threads and processes: OpenMP's, gloo's, autograd's, DataLoader workers."""


def cores(exam: Examined) -> list[Check]:
    """Whether each node has a core for every thread that its ranks will compute with."""
    problems = {}
    words = {}
    for name, own in exam.values("cores").items():
        slots = exam.patient(name).slots
        threads = exam.torch.get(name, {}).get("threads")
        there = f"{own:g} core{'s' * (own != 1)}"
        words[name] = f"{there} for {slots} rank{'s' * (slots > 1)}"
        if slots > own and exam.is_rehearsal:
            words[name] += ", which take turns: good to rehearse, not to measure"
        elif slots > own:
            cure = "fewer slots, or more cores (slurm.cpus_per_task)"
            problems[name] = f"{slots} ranks take turns on {there}", cure
        elif threads is not None and slots * threads > own:
            cure = f"env: {{OMP_NUM_THREADS: {max(1, int(own / slots))}}} in the topology"
            problems[name] = f"{slots} x {threads} threads on {there}", cure
    return warn_all("cores", problems) or _pass(exam, "cores", words)


def memory(exam: Examined) -> list[Check]:
    """Whether there is memory to begin with."""
    problems = {}
    words = {}
    for name, free in exam.values("memory_free").items():
        needed = exam.patient(name).slots * MEMORY_OF_A_RANK
        words[name] = f"{_size(free)} free of {_size(exam.looks[name]['memory'])}"
        if free is not None and free < needed:
            found = f"{words[name]}, and ranks take {_size(needed)} before they train"
            problems[name] = (
                found,
                "end what else runs there, or allow more (docker.memory, slurm.mem)",
            )
    return warn_all("memory", problems) or _least(
        exam, "memory", exam.values("memory_free"), "free at least"
    )


def shared_memory(exam: Examined) -> list[Check]:
    """Whether /dev/shm holds what DataLoader workers and NCCL put there."""
    problems = {}
    for name, shm in exam.values("shm").items():
        if shm is not None and shm["free"] < SHARED_MEMORY:
            found = f"{_size(shm['free'])} free of {_size(shm['total'])} in /dev/shm"
            cure = "docker.shm: 1g in the topology"
            if shm["total"] >= SHARED_MEMORY:
                cure = "remove what a crash left there: ls -l /dev/shm"
            elif exam.on != "docker":
                cure = "mount -o remount,size=1g /dev/shm; of a container: docker run --shm-size=1g"
            problems[name] = found, cure
    free = {name: shm["free"] for name, shm in exam.values("shm").items() if shm is not None}
    return warn_all("shared-memory", problems) or _least(
        exam, "shared-memory", free, "free at least"
    )


def limits(exam: Examined) -> list[Check]:
    """How many files and processes the user may have, and how much memory may be locked."""
    files: dict[str, tuple[str, str]] = {}
    processes: dict[str, tuple[str, str]] = {}
    locked: dict[str, tuple[str, str]] = {}
    words = {}
    needed_files = max(FILES, 4 * sum(patient.slots for patient in exam.patients))
    for name, ulimits in exam.values("ulimits").items():
        has = {what: ulimits.get(what, [None])[0] for what in ("open files", "processes", "locked")}
        words[name] = (
            f"{_count(has['open files'])} open files, {_count(has['processes'])} processes"
        )
        if has["open files"] is not None and has["open files"] < needed_files:
            cure = f"ulimit -n {needed_files}; nofile in /etc/security/limits.conf"
            files[name] = f"{has['open files']} open files; {needed_files} may be needed", cure
        needed = exam.patient(name).slots * PROCESSES_OF_A_RANK
        pids = exam.looks[name]["cgroup"]["pids"]
        fewest = min((n for n in (has["processes"], pids) if n is not None), default=None)
        if fewest is not None and fewest < needed:
            cure = "ulimit -u, nproc in limits.conf; docker run --pids-limit, TasksMax of systemd"
            processes[name] = f"{fewest} processes; {needed} may be needed", cure
        infiniband = exam.backend == "nccl" and exam.looks[name]["infiniband"]
        if infiniband and has["locked"] is not None:
            cure = "memlock unlimited in limits.conf; for Slurm PropagateResourceLimitsExcept"
            locked[name] = f"{_size(has['locked'])} may be locked; InfiniBand locks buffers", cure
    found = [
        line for problems in (files, processes, locked) for line in warn_all("limits", problems)
    ]
    return found or _pass(exam, "limits", words)


def container(exam: Examined) -> list[Check]:
    """What the node's control group lets it have, where that is less than the machine's."""
    words = {}
    for name in exam.seen:
        look = exam.looks[name]
        parts = []
        if look["cpus"] is not None and look["cores"] < look["cpus"]:
            parts.append(f"{look['cores']:g} of {look['cpus']} cores")
        if look["cgroup"]["memory"] is not None:
            parts.append(f"{_size(look['cgroup']['memory'])} of memory")
        if look["cgroup"]["pids"] is not None:
            parts.append(f"{look['cgroup']['pids']} processes")
        words[name] = ", ".join(parts) or "no limit"
    return _pass(exam, "container", words)


def disk(exam: Examined) -> list[Check]:
    """Whether logs and checkpoints can be written where runs live, and there is room for them."""
    other = "another folder (on ssh: ssh.workdir)"
    closed = tuple(name for name, may in exam.values("writable").items() if may is False)
    if closed:
        found = f"nothing can be written where runs live, on {listed(closed)}"
        return [Check("disk", "fail", found, closed, f"see whose it is, or take {other}")]
    cure = f"make room, or take {other}; lab rm removes old runs"
    problems = {
        name: (f"{_size(free)} free where runs live", cure)
        for name, free in exam.values("disk_free").items()
        if free is not None and free < DISK
    }
    return warn_all("disk", problems) or _least(
        exam, "disk", exam.values("disk_free"), "free at least"
    )


def kernel(exam: Examined) -> list[Check]:
    """Whether the kernel can emulate links as asked, and lets processes be looked into."""
    netem, ptrace = exam.values("netem"), exam.values("ptrace")
    if not netem:
        return []
    lack = tuple(name for name, has in netem.items() if has is False)
    if lack and ("delay" in exam.link or "loss" in exam.link):
        found = f"no sch_netem on {listed(lack)}: docker.link cannot have delay or loss"
        cure = "take delay and loss out of docker.link, or take an engine whose kernel has it"
        return [Check("kernel", "fail", found, lack, cure)]
    said = {True: "yes", False: "no", None: "not known"}
    words = {
        name: f"netem: {said[netem[name]]}, ptrace of other processes: {said[ptrace[name]]}"
        for name in netem
    }
    return _pass(exam, "kernel", words)


def _pass(exam: Examined, name: str, words: Mapping[str, str]) -> list[Check]:
    found = groups(words)
    if not found:
        return []
    if len(found) == 1:
        return [Check(name, "pass", next(iter(found)), exam.seen)]
    text = "; ".join(f"{value} on {listed(nodes)}" for value, nodes in list(found.items())[:4])
    return [Check(name, "pass", text, exam.seen)]


def _least(exam: Examined, name: str, values: Mapping[str, Any], words: str) -> list[Check]:
    known = [value for value in values.values() if value is not None]
    return [Check(name, "pass", f"{words} {_size(min(known))}", exam.seen)] if known else []


def _size(value: int | None) -> str:
    return "?" if value is None else in_words(value)


def _count(value: int | None) -> str:
    return "any number of" if value is None else str(value)
