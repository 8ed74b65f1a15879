"""GPUs: whether there is one for every rank, alike everywhere, and how they are linked."""

from lab.doctor.check import Check, listed
from lab.doctor.examined import Examined, groups

IN_USE = 1 << 30
"""Bytes in use on a GPU that nobody of ours has touched yet."""


def gpus(exam: Examined) -> list[Check]:
    """Slots against GPUs, kinds, who else uses them, and their links. Nothing where none are."""
    found = exam.values("gpus")
    if exam.backend != "nccl" and not any(found.values()):
        return []
    checks = []
    for name, own in found.items():
        slots = exam.patient(name).slots
        usable = exam.torch.get(name, {}).get("gpus", len(own))
        if exam.backend == "nccl" and usable < slots:
            seen = f", of {len(own)} that nvidia-smi sees" if usable < len(own) else ""
            words = (
                f"{name}: {slots} rank{'s' * (slots > 1)}, and torch can use {usable} GPUs{seen}"
            )
            cure = "fewer slots; CUDA_VISIBLE_DEVICES; a build of torch for this driver"
            checks.append(Check("gpus", "fail", words, (name,), cure))
        for number, gpu in enumerate(own):
            if gpu["memory_used"] > IN_USE:
                words = f"{name}: GPU {number} has {gpu['memory_used'] >> 20} MiB in use"
                cure = "somebody computes there: nvidia-smi"
                checks.append(Check("gpus", "warn", words, (name,), cure))
    kinds = groups({name: _kinds(own) for name, own in found.items()})
    text = "; ".join(f"{kind} on {listed(names)}" for kind, names in kinds.items())
    if len(kinds) > 1:
        cure = "the slowest sets the pace of all: nodes of one kind train faster"
        checks.append(Check("gpus", "warn", text, tuple(found), cure))
    return checks or [Check("gpus", "pass", text, exam.seen)]


def gpu_links(exam: Examined) -> list[Check]:
    """By what the GPUs of a node are linked: NV is NVLink, SYS goes through both processors."""
    links = groups(
        {
            name: ", ".join(f"{kind}: {len(pairs)} pairs" for kind, pairs in sorted(kinds.items()))
            for name, kinds in exam.values("gpu_links").items()
            if kinds
        }
    )
    if not links:
        return []
    text = "; ".join(f"{kinds} on {listed(names)}" for kinds, names in links.items())
    return [Check("gpu-links", "pass", text, exam.seen)]


def _kinds(gpus: list[dict[str, str]]) -> str:
    names = [gpu["name"] for gpu in gpus]
    return ", ".join(f"{names.count(n)} x {n}" for n in dict.fromkeys(names)) or "no GPU"
